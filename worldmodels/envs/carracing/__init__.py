"""Gymnasium's CarRacing, written for this pipeline: many lanes in numba, equal to the original.

    track      the road, tile for tile
    bodies     the car's shapes and masses
    physics    what Box2D does to it in a step
    contacts   which tiles it touches
    game       a step of every lane: controls, tyres, rewards, ends
    outlines   where things lie in a lane's view
    picture    what is seen, at the size of the observation; instruments below it
    courses    the tracks that lanes drive on
    simulator  all of it for many lanes on the CPU; cuda, on a GPU, by cuda_kernels
    compiled   the compiled kernels on disk
    vector     a simulator as a Gymnasium vector environment; single, as an ordinary one

`Lanes` in ``state`` is everything that a lane carries from step to step. The rest are functions of
one lane over arrays, so that a loop over lanes can be a thread's or a GPU's.
"""

from worldmodels.envs.carracing.compiled import provide_folder

provide_folder()
