"""Real environments as vector environments: engines, pixels, displays, random actions.

Importing it registers ``worldmodels/CarRacing-v3`` with Gymnasium, which imports it by itself for
the id ``worldmodels.envs:worldmodels/CarRacing-v3``. Neither PyTorch nor numba is loaded for that.
"""

from gymnasium.envs.registration import register

register(
    id="worldmodels/CarRacing-v3",
    entry_point="worldmodels.envs.carracing.single:CarRacingEnv",
    vector_entry_point="worldmodels.envs.carracing.vector:CarRacingVectorEnv",
    max_episode_steps=1000,
    reward_threshold=900,
)
