#!/usr/bin/env bash
# Run `python -m worldmodels` in the container. Results appear in ./data and belong to you.
#
#   docker/run.sh --build                                build the image (again, after an edit)
#   docker/run.sh stage=all preset=quick                 run a command, on the GPU if there is one
#   DISPLAY= docker/run.sh stage=...                     without this machine's display
#   docker/run.sh --vnc stage=watch model=...            a window that VNC shows: docker/vnc.sh
#   CUDA_VISIBLE_DEVICES=1 docker/run.sh stage=...       on one GPU of several; empty: on the CPU
#
# AWS_*, WANDB_* and the entry point's own variables are passed on (docker/entrypoint.sh). The exit
# code is the program's: 75 means stopped by SIGTERM or Ctrl-C with all progress saved, and the same
# command continues.
set -euo pipefail

readonly IMAGE=worldmodels

say() { echo "docker/run.sh: $*" >&2; }

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

command -v docker >/dev/null || {
    say "docker is not installed: see https://docs.docker.com/engine/install"
    exit 1
}
daemon=$(docker info --format '{{json .Runtimes}} {{json .SecurityOptions}}') || {
    say "cannot talk to the Docker daemon: start it, or ask to be added to the docker group"
    exit 1
}

if [[ ${1:-} == --build ]]; then
    shift
    commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
    docker build --file "$root/docker/Dockerfile" --tag "$IMAGE" \
        --build-arg "COMMIT=$commit" --label "org.opencontainers.image.revision=$commit" "$root"
    [[ $# -gt 0 ]] || exit 0
fi
vnc=no
if [[ ${1:-} == --vnc ]]; then
    shift
    vnc=yes
fi
# Without this check docker would pull another project's image of this name from Docker Hub.
docker image inspect "$IMAGE" >/dev/null 2>&1 || {
    say "there is no image '$IMAGE' yet: build it with docker/run.sh --build"
    exit 1
}

# --init passes SIGTERM on and reaps the simulators; docker stop waits for the checkpoint.
# /dev/shm holds the frames that simulators and trainer share; docker's 64 MB are too few.
options=(--rm --init --stop-timeout 120 --shm-size 2g)
[[ ! -t 0 || ! -t 1 ]] || options+=(--interactive --tty)

mkdir -p "$root/data"  # or docker would create it, as root
options+=(--volume "$(cd -- "$root/data" && pwd -P):/workspace/data")
options+=(--volume "worldmodels-cache-$(id -u):/home/worldmodels/.cache")  # the compiled simulator
if [[ $daemon == *name=rootless* ]]; then
    options+=(--user 0:0)  # root of a rootless daemon is the user who runs it
else
    options+=(--user "$(id -u):$(id -g)")
fi

if [[ -n ${CUDA_VISIBLE_DEVICES-all} ]]; then
    if [[ $daemon == *'"nvidia"'* ]]; then
        options+=(--gpus all)
        [[ -z ${CUDA_VISIBLE_DEVICES-} ]] || options+=(--env CUDA_VISIBLE_DEVICES)
    else
        say "no NVIDIA runtime in docker, running on the CPU; for a GPU install" \
            "nvidia-container-toolkit and run: sudo nvidia-ctk runtime configure --runtime=docker"
    fi
fi

# Over the host's network, the server in the container listens on the loopback of this machine.
if [[ $vnc == yes ]]; then
    options+=(--network host --entrypoint /workspace/docker/vnc.sh --env WORLDMODELS_VNC_PORT)
    password=${WORLDMODELS_VNC_PASSWORD_FILE-}
    if [[ -n $password ]]; then
        [[ -s $password ]] || {
            say "WORLDMODELS_VNC_PASSWORD_FILE=$password: has no password to read"
            exit 1
        }
        options+=(--volume "$(realpath -- "$password"):/tmp/vnc-password:ro")
        options+=(--env WORLDMODELS_VNC_PASSWORD_FILE=/tmp/vnc-password)
    fi
fi

# The program starts its own display when it needs one and is given none (display=auto).
display=${DISPLAY-}
[[ $vnc == no ]] || display=
for argument; do
    case $argument in
        display=xvfb | display=none) display= ;;
    esac
done
if [[ -n $display ]]; then
    # The cookie is looked up by host name, so the container gets the host's.
    options+=(--env DISPLAY --hostname "$(uname -n)")
    case $display in
        :* | unix:*) options+=(--volume /tmp/.X11-unix:/tmp/.X11-unix:ro) ;;
        *) options+=(--network host) ;;  # ssh -X forwards to a port of the host's loopback
    esac
    cookie=${XAUTHORITY:-${HOME-}/.Xauthority}
    if [[ -f $cookie ]]; then
        options+=(--volume "$cookie:/tmp/.Xauthority:ro" --env XAUTHORITY=/tmp/.Xauthority)
    fi
fi

# By name only: the values, a key among them, stay out of the process list.
while read -r name; do
    options+=(--env "$name")
done < <(compgen -e | grep -E '^(AWS_|WANDB_|WORLDMODELS_(SHUTDOWN|RESTARTS))')

exec docker run "${options[@]}" "$IMAGE" "$@"
