#!/usr/bin/env bash
# Run `python -m worldmodels` with its window on a virtual display that VNC clients show, on a
# machine without a screen.
#
#   docker/vnc.sh stage=watch model=pretrained/carracing
#
# The server listens on 127.0.0.1 alone. From another machine: ssh -L 5900:localhost:5900 SERVER
#
#   WORLDMODELS_VNC_PORT=5901            another port; the display has the same number
#   WORLDMODELS_VNC_PASSWORD_FILE=FILE   its first line is the password, of which VNC compares eight
#                                        characters; without it whoever is logged in here can connect
#
# The exit code is the program's.
set -euo pipefail

say() { echo "vnc.sh: $*" >&2; }

for program in Xvfb x11vnc xauth mcookie setpriv; do
    command -v "$program" >/dev/null || {
        say "$program is not installed: run apt-get install xvfb x11vnc xauth util-linux"
        exit 1
    }
done
port=${WORLDMODELS_VNC_PORT:-5900}
[[ $port =~ ^[0-9]{1,5}$ && $port -ge 1024 && $port -le 59535 ]] || {
    say "WORLDMODELS_VNC_PORT=$port: choose 1024 to 59535"
    exit 1
}
display=:$port
access=(-nopw)
if [[ -n ${WORLDMODELS_VNC_PASSWORD_FILE-} ]]; then
    [[ -s $WORLDMODELS_VNC_PASSWORD_FILE && -r $WORLDMODELS_VNC_PASSWORD_FILE ]] || {
        say "WORLDMODELS_VNC_PASSWORD_FILE=$WORLDMODELS_VNC_PASSWORD_FILE: has no password to read"
        exit 1
    }
    access=(-passwdfile "$(realpath -- "$WORLDMODELS_VNC_PASSWORD_FILE")")
fi

listens() { (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

if listens || [[ -e /tmp/.X$port-lock ]]; then
    say "WORLDMODELS_VNC_PORT=$port: in use; choose another port"
    exit 1
fi

# serve COMMAND...: run it beside this process, in a session of its own, which Ctrl-C does not reach.
# The kernel ends it when this process ends: `exec` below keeps the process.
serve() { setsid setpriv --pdeathsig TERM "$@" >/dev/null 2>&1 & }

# await TEST...: wait until the last server is ready; ends this script where it has ended.
await() {
    until "$@"; do
        kill -0 "$!" 2>/dev/null || {
            say "a server on display $display and port $port does not start: try Xvfb and x11vnc by hand"
            exit 1
        }
        sleep 0.1
    done
}

# Without a cookie every user of this machine could use the display.
export XAUTHORITY=${XAUTHORITY:-${HOME:-/tmp}/.Xauthority}
xauth -q add "$display" . "$(mcookie)" 2>/dev/null || {
    say "XAUTHORITY=$XAUTHORITY: cannot be written; set it to a file that can"
    exit 1
}
serve Xvfb "$display" -screen 0 820x720x24 -nolisten tcp -auth "$XAUTHORITY"
await test -S "/tmp/.X11-unix/X$port"
serve x11vnc -display "$display" -rfbport "$port" -localhost -noipv6 -forever -shared "${access[@]}"
await listens
say "VNC server on 127.0.0.1:$port"

export DISPLAY=$display
exec "$(dirname -- "${BASH_SOURCE[0]}")/entrypoint.sh" "$@" display=forward
