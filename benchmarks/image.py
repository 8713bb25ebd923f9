"""The steps of docker/Dockerfile in a folder, without a Docker engine, and the program inside it.

    sudo python benchmarks/image.py FOLDER --screenshot window.png \
        --arg DEVICE=cpu --arg TORCH_INDEX=... --bind /etc/pip.conf

Every instruction after FROM is carried out in FOLDER, which debootstrap fills first: a base image
cannot be had without a registry, so the base is the Debian or Ubuntu of this machine, whichever
release that is. Needs Linux, root, debootstrap and the network, and 5 GB of disk.

Then the program runs there as the image's user, without a network (`unshare --net`): `doctor`, and
every stage of ``preset=smoke`` for CarRacing and Take Cover. With ``--screenshot``, an Xvfb of this
machine is forwarded with its cookie, as docker/run.sh forwards a display, an episode of Gymnasium's
CarRacing opens its window on it, and a picture of that display is kept.

FOLDER is deleted at the end unless ``--keep`` is given. What is mounted is mounted in namespaces of
their own, so nothing stays mounted, whatever happens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from PIL import Image, ImageGrab
from pyvirtualdisplay.display import Display

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "docker/Dockerfile"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WINDOW_S = 300.0
"""After so long without a window none is expected any more."""

DEVICES = {"null": "3", "zero": "5", "full": "7", "random": "8", "urandom": "9"}
"""Minor numbers of /dev/*, whose major number is 1."""

RUNS = (
    ("stage=doctor",),
    ("stage=all", "preset=smoke"),
    ("stage=all", "preset=smoke", "env=takecover"),
)
WINDOW = (
    "stage=rollouts",
    "preset=smoke",
    "run=window",
    "display=forward",
    "env.engine=gymnasium",
    "env.needs_display=true",
    "+env.kwargs.render_mode=human",
    "env.num_envs=1",
    "rollouts.episodes=1",
    "env.max_steps=500",
    "workers.processes=0",
)


def instructions(text: str) -> list[tuple[str, str]]:
    """The Dockerfile's instructions as (name, rest), continued lines joined."""
    lines = (line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    joined = "".join(lines).replace("\\\n", "").splitlines()
    return [
        (name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined if line)
    ]


@dataclass
class RootFolder:
    """A folder that holds a system, and the state that a Dockerfile's instructions change."""

    root: Path
    arguments: Mapping[str, str]
    binds: Sequence[Path]
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    build_args: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)

    def build(self, text: str) -> None:
        """Carry out the instructions of a Dockerfile's text."""
        for name, rest in instructions(text):
            handler = getattr(self, f"_{name.lower()}", None)
            if handler is None:
                raise SystemExit(f"{DOCKERFILE}: {name}: is unknown here; add it to {__file__}")
            began = time.monotonic()
            handler(rest)
            if name == "RUN":
                print(f"{time.monotonic() - began:6.0f} s  RUN {' '.join(rest.split())[:80]}")

    def command(
        self, words: Sequence[str], *, isolated: bool, binds: Sequence[Path] = ()
    ) -> list[str]:
        """The command line that runs `words` inside, as the user and in the folder of the image.

        Args:
            words: of the command.
            isolated: without a network, as on a machine that has none.
            binds: paths of this machine that are seen inside, read-only.
        """
        mounts = [
            f"cd {shlex.quote(str(self.root))}",
            "mount -t tmpfs -o mode=755 tmpfs dev",
            *(f"mknod -m 666 dev/{name} c 1 {minor}" for name, minor in DEVICES.items()),
            "mknod -m 666 dev/tty c 5 0",
            "ln -s /proc/self/fd dev/fd",
            "mkdir dev/pts",
            "mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts",
            "ln -s pts/ptmx dev/ptmx",
            "mkdir -m 1777 dev/shm",
            "mount -t tmpfs -o size=2g,mode=1777 tmpfs dev/shm",
            "mount -t proc proc proc",
            "mount -t sysfs -o ro sysfs sys",
            *(["ip link set lo up"] if isolated else []),
        ]
        for path in binds:
            here, there = shlex.quote(str(path)), shlex.quote(str(path).lstrip("/"))
            make = (
                f"mkdir -p {there}"
                if path.is_dir()
                else f'mkdir -p "$(dirname {there})"; touch {there}'
            )
            mounts.append(f"{make}; mount --rbind -o ro {here} {there}")
        inside = f"cd {shlex.quote(self.workdir)} && exec {shlex.join(words)}"
        env = [f"{key}={value}" for key, value in self.env.items()]
        chroot = ["chroot", f"--userspec={self.user}:{self.user}", ".", "env", "-i", *env]
        enter = f"exec {shlex.join([*chroot, 'sh', '-c', inside])}"
        namespaces = ["--mount", "--pid", "--kill-child", *(["--net"] if isolated else [])]
        return ["unshare", *namespaces, "bash", "-ec", "\n".join([*mounts, enter])]

    def program(self, words: Sequence[str], binds: Sequence[Path] = ()) -> list[str]:
        """The command line of the image's entry point, without a network."""
        return self.command([*self.entrypoint, *words], isolated=True, binds=binds)

    def _value(self, text: str) -> str:
        return Template(text.strip('"')).safe_substitute(self.build_args | self.env)

    def _arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        given = self.arguments.get(name, self.build_args.get(name, self._value(default)))
        self.build_args[name] = given

    def _env(self, rest: str) -> None:
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            self.env[name] = self._value(value)

    def _from(self, rest: str) -> None:
        """The base is in the folder already."""

    def _volume(self, rest: str) -> None:
        """A folder of the image."""

    def _workdir(self, rest: str) -> None:
        self.workdir = self._value(rest)
        self._inside(self.workdir).mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        source, target = rest.split()
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, self._inside(target), ignore=ignored, dirs_exist_ok=True)
        else:
            folder = self._inside(target)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder)

    def _run(self, rest: str) -> None:
        command = re.sub(r"^(--mount=\S+\s+)+", "", rest)
        of_pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        values = {"HOME": "/root", **of_pip, **self.build_args, **self.env}
        words = ["env", *(f"{key}={value}" for key, value in values.items()), "sh", "-c", command]
        line = self.command(words, isolated=False, binds=[Path("/etc/resolv.conf"), *self.binds])
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"RUN {command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")

    def _user(self, rest: str) -> None:
        self.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.entrypoint = json.loads(rest)

    def _inside(self, path: str) -> Path:
        return self.root / (Path(self.workdir) / path).relative_to("/")


def take_picture(image: RootFolder, path: Path) -> None:
    """Play an episode in a window on a display of this machine, and keep a picture of it."""
    with Display(visible=False, size=(1200, 900), use_xauth=True) as display:
        cookie = Path(os.environ["XAUTHORITY"])
        cookie.chmod(0o644)  # the user inside is another one
        image.env |= {"DISPLAY": f":{display.display}", "XAUTHORITY": str(cookie)}
        line = image.program(WINDOW, binds=[Path("/tmp/.X11-unix"), cookie])
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + WINDOW_S
            while process.poll() is None and time.monotonic() < deadline:
                picture = ImageGrab.grab(xdisplay=f":{display.display}")
                if len(picture.getcolors(1 << 24) or ()) > 100:  # the game's, not an empty window's
                    picture.save(path)
                    print(f"{path}: {picture.width} x {picture.height}")
                    break
                time.sleep(0.2)
            _, errors = process.communicate()
    if process.returncode or not path.is_file():
        raise SystemExit(f"no window, exit code {process.returncode}: {errors.decode()[-4000:]}")
    with Image.open(path) as kept:
        kept.verify()


def missing() -> str | None:
    """What this machine lacks of what is needed; None if nothing."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "Linux and root"
    return None if shutil.which("debootstrap") else "debootstrap"


def bootstrap(folder: Path) -> None:
    """Fill a folder with the release of this machine."""
    release = platform.freedesktop_os_release()
    print(f"base: {release['PRETTY_NAME']}, by debootstrap")
    words = ["debootstrap", "--variant=minbase", release["VERSION_CODENAME"], str(folder)]
    subprocess.run(["unshare", "--mount", *words], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Build, run, delete; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arg", action="append", default=[], help="a build argument, NAME=VALUE")
    parser.add_argument(
        "--bind",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="of this machine, seen while the image is built (pip's configuration)",
    )
    parser.add_argument("--screenshot", type=Path, help="a picture of a forwarded window")
    parser.add_argument("--keep", action="store_true", help="do not delete the folder")
    options = parser.parse_args()
    if (lacking := missing()) is not None:
        print(f"error: needs {lacking}", file=sys.stderr)
        return 1
    folder = options.folder.resolve()
    arguments = dict(word.split("=", 1) for word in options.arg)
    image = RootFolder(folder, arguments, options.bind)
    try:
        if not (folder / "etc").is_dir():
            bootstrap(folder)
        image.build(DOCKERFILE.read_text())
        for words in RUNS:
            began = time.monotonic()
            subprocess.run(image.program(words), check=True)
            print(f"{time.monotonic() - began:6.0f} s  {' '.join(words)}")
        if options.screenshot:
            take_picture(image, options.screenshot)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
