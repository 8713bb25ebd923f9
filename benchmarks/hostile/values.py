"""Values that no key of the configuration can take, and texts that would act where they arrive."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from harness import ALONE, SMALL, STAGES, Bench, Case, fault, record, run, unprintable

from worldmodels.config.schema import Config

NUMBERS = ("nan", "inf", "-inf", "-1000000000", "words", "[1]", "{a: 1}", "''")
WHOLE = (*NUMBERS, "0.5", "1000000000000000000000000000000")
MAPPING = "{a: 1}"
TEXTS = ("'a\x1b[2Jb'", "'a\nb'", "[1]", MAPPING)
SCRIPT = "<script>alert(1)</script>"
ESCAPE = "\x1b]0;title\x07\x1b[31m"
FREE = ("bootstrap", "env.kwargs")
"""Mappings, whose values another test of the configuration refuses."""


def keys(kind: type = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of the schema with its type."""
    hints = get_type_hints(kind)
    for part in fields(kind):
        hint, name = hints[part.name], prefix + part.name
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from keys(hint, f"{name}.")
        else:
            yield name, hint


def unusable(hint: Any) -> tuple[str, ...]:
    """Values that no key of this type can take."""
    if get_origin(hint) is dict:
        # What a model has no option for is found where it is built: tests/test_extensions.py.
        return tuple(text for text in (*TEXTS, "5") if text != MAPPING)
    if get_origin(hint) is list:
        return ("5", "words")
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    (kind,) = kinds if len(kinds) == 1 else (str,)
    if kind is bool:
        return ("maybe", "2.5", "[1]", "''")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ("nothing", "-1", "[1]", "''", TEXTS[0])
    if kind is int:
        return WHOLE
    if kind is float:
        return NUMBERS
    return TEXTS if kind is str else ("5", "words")


def values(bench: Bench, folder: Path) -> Iterator[Case]:
    """Bad values for every key of the schema; each is refused before anything is made."""
    every = [(key, value) for key, hint in keys() if key not in FREE for value in unusable(hint)]
    for key, value in every if bench.cases >= 100 else every[:: max(1, 300 // bench.cases)]:
        yield Case("values", f"{key}={value}", functools.partial(_refused, key, value))


def _refused(key: str, value: str, folder: Path) -> str | None:
    data = folder / "data"
    words = [*SMALL, ALONE, "run=smoke", "stage=report", f"{key}={value}"]
    if key == "stage":
        words.remove("stage=report")
    if key == "run":
        words.remove("run=smoke")
    if key == "data":
        return None  # the harness gives it; tests/test_limits.py tests it
    done = run(data, *words)
    made = sorted(path.name for path in folder.rglob("*") if not path.name.startswith("."))
    if made:
        return f"made {', '.join(made)}"
    return fault(done, data, key, key.rpartition(".")[2])


def injection(bench: Bench, folder: Path) -> Iterator[Case]:
    """Markup and terminal escapes in every text that a page or a message is made of."""
    for text, what in ((SCRIPT, "markup"), (ESCAPE, "escapes")):
        for stage in STAGES:
            for name in ("manifest.json", *(["scores.json"] if stage == "evaluate" else [])):
                path = f"{stage}/{name}"
                every = _places(record(bench.smoke / "smoke" / path))
                places = [place for place in every if place != ("crc32",)]
                step = max(1, len(places) * len(STAGES) * 2 // max(1, bench.cases))
                for place in places[::step]:
                    check = functools.partial(_injected, bench, path, place, text)
                    yield Case("injection", f"{what}, {path}, {'/'.join(place)}", check)
        check = functools.partial(_injected_header, bench, text)
        yield Case("injection", f"{what}, the header of metrics.csv", check)
        check = functools.partial(_injected_name, bench, text.replace("/", ""))
        yield Case("injection", f"{what}, the name of a run", check)


def _places(tree: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all keys of nested objects; a key is a text as much as a value is."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield (*above, key)
            yield from _places(value, (*above, key))


def _put(tree: Any, place: tuple[str, ...], text: str, as_key: bool) -> None:
    for key in place[:-1]:
        tree = tree[key]
    value = tree[place[-1]]
    if as_key:
        tree[text] = tree.pop(place[-1])
    else:
        tree[place[-1]] = f"{value}{text}"


def _injected(
    bench: Bench, name: str, place: tuple[str, ...], text: str, folder: Path
) -> str | None:
    data = bench.copy(folder, *STAGES)
    path = data / "smoke" / name
    for as_key in (False, True):
        tree = record(bench.smoke / "smoke" / name)
        if isinstance(tree, dict):
            tree.pop("crc32", None)  # an attacker would write a valid one
        _put(tree, place, text, as_key)
        path.write_text(json.dumps(tree))
        wrong = _reported(data, "smoke", text)
        if wrong is not None:
            return f"as a {'key' if as_key else 'value'}: {wrong}"
    return None


def _injected_header(bench: Bench, text: str, folder: Path) -> str | None:
    data = bench.copy(folder, *STAGES)
    path = data / "smoke/rnn/metrics.csv"
    head, rest = path.read_text().split("\n", 1)
    path.write_text(f"{head},{text}\n{rest}")
    return _reported(data, "smoke", text)


def _injected_name(bench: Bench, text: str, folder: Path) -> str | None:
    data = bench.copy(folder, *STAGES)
    (data / "smoke").rename(data / text)
    return _reported(data, text, text)


def _reported(data: Path, run_name: str, text: str) -> str | None:
    """What comes of a report: a page and a terminal where `text` does nothing."""
    quoted = "'" + run_name.replace("'", "\\'") + "'"
    done = run(data, *SMALL, ALONE, "stage=report", f"run={quoted}")
    wrong = unprintable(done)
    if wrong is not None or done.code != 0:
        return wrong or fault(done, data)
    page = (data / run_name / "report/index.html").read_text()
    reader = _Elements()
    reader.feed(page)
    if reader.found:
        return f"the page has {', '.join(sorted(reader.found))}"
    return "the page has a control character" if "\x1b" in page else None


class _Elements(HTMLParser):
    """Elements and attributes that run what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what acts."""
        if tag in ("script", "iframe", "object", "embed", "base", "form", "link"):
            self.found.add(f"<{tag}>")
        self.found |= {f"{name}=" for name, _ in attrs if name.startswith("on")}
