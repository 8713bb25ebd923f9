"""Gymnasium's CarRacing for many environments at once, compiled with numba.

Equal to CarRacing-v3 in tracks, physics, rewards and ends, nearly in frames: docs/simulator.md. It
imports nothing else of `worldmodels` than `worldmodels.errors`, and torch for a GPU only.

    track      the tiles of a road
    bodies     shapes and masses of the car's bodies
    physics    Box2D's step of the car
    contacts   which tiles the car touches
    state      the arrays that an environment keeps from step to step
    game       a step of every environment: controls, tyres, rewards, ends
    outlines   the view transform and the outlines of polygons
    picture    the frames, at the size of the observation; instruments and glyphs the bar below
    courses    the tracks in use, as arrays
    simulator  all of it for N environments on the CPU; cuda and cuda_kernels, on a GPU
    snapshot   saved states
    compiled   the compiled kernels on disk
    vector     the Gymnasium vector environment; single, the Gymnasium environment

The kernels are functions of one environment over arrays, so that a thread of the CPU or of a GPU
can run them.
"""

from worldmodels.envs.carracing.compiled import provide_folder

provide_folder()
