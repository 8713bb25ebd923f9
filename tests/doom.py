"""Take Cover, as ``conf/env/takecover.yaml`` has it."""

from worldmodels.envs.engines import EnvSpec

ID = "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1"
SPEC = EnvSpec(
    id=ID,
    engine="gymnasium",
    max_steps=2100,
    crop_rows=200,
    action_bins=(2, 0, 1),
    kwargs={"doom_config_path": "/dev/null"},
)
