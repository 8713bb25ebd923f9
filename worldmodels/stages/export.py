"""Stage ``export``: a trained agent, or recorded episodes, for other programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from worldmodels.config.choices import Format
from worldmodels.config.schema import Config
from worldmodels.export.graphs import FORMAT
from worldmodels.extras import GRAPHS
from worldmodels.runs.artifacts import Run
from worldmodels.runs.integrity import fingerprint_file
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.model_card import evaluation_of, write_hub


def run(context: Context) -> None:
    """Write the agent of ``model=``, or of this run, in the form of ``format=``; for
    ``format=minari`` and ``lerobot``, the episodes of this run.

    Raises:
        ArtifactError: there is no agent, it is damaged, or its models cannot be exported; or there
            are no episodes.
        ConfigError: the page's files cannot be had.
    """
    if context.config.format in (Format.minari, Format.lerobot):
        _export_episodes(context)
    else:
        export(context, context.config.format)


def export(context: Context, form: Format) -> Path:
    """The folder of an exported agent, made where it is not there or is of another agent."""
    config = context.config
    source, inputs = context.inputs.agent()
    run = context.run.within("export", "export")
    temperature = config.controller.evaluation_temperature
    content: dict[str, Any] = {"name": _name(config), "controller.temperature": temperature}
    evaluation = None
    if form in GRAPHS:
        content["format"] = FORMAT  # graphs of an older version are made again
    if form is Format.huggingface:
        evaluation = evaluation_of(context.run, inputs)
        inputs |= {} if evaluation is None else {"evaluate": evaluation.fingerprint}
    if form is Format.web:
        from worldmodels.export.web import PAGE

        inputs |= {path.name: fingerprint_file(path) for path in sorted(PAGE.iterdir())}
    with _begin(run, form, content, inputs, config.overwrite) as folder:
        context.note_fetched(folder)
        if not folder.complete:
            if form in GRAPHS:
                files = _write_graphs(folder.path, source, config, form)
            else:
                files = write_hub(context, folder.path, source, evaluation)
            _finish(folder, fingerprint_file(folder.path / files[0]), files)
    return folder.path


def _export_episodes(context: Context) -> None:
    """Write the episodes of a run as a data set of Minari or of LeRobot."""
    config, inputs = context.config, {"rollouts": context.run.fingerprint("rollouts")}
    run = context.run.within("export", "export")
    name = re.sub(r"[^A-Za-z0-9_-]", "-", config.run)
    name = f"worldmodels/{name}-v0" if config.format is Format.minari else f"worldmodels/{name}"
    with _begin(run, config.format, {"name": name}, inputs, config.overwrite) as folder:
        if not folder.complete:
            episodes = context.inputs.own_episodes()
            rewarded = all(shard.attrs.get("rewarded", 1) for shard in episodes.shards)
            # Imported here: these libraries are optional.
            if config.format is Format.minari:
                from worldmodels.data.minari_sets import write_minari

                files = write_minari(folder.path, name, episodes, {"rewarded": rewarded})
            else:
                from worldmodels.data.lerobot_writer import write_lerobot

                files = write_lerobot(folder.path / name, episodes, config.env.name, rewarded)
                files = [f"{name}/{file}" for file in files]
            _finish(folder, episodes.fingerprint, files)


def _begin(
    run: Run, form: Format, content: dict[str, Any], inputs: dict[str, str], overwrite: bool
) -> StageFolder:
    """The folder of a format, begun anew where it has something else."""
    found = run.manifest(form.name) if run.has(form.name) else {}
    other = (found.get("inputs"), found.get("config")) != (inputs, content)
    folder = run.begin(form.name, content, inputs, overwrite=overwrite or other)
    if folder.complete:
        say(f"export: done before ({folder.path})")
    return folder


def _finish(folder: StageFolder, fingerprint: str, files: list[str]) -> None:
    folder.finish(fingerprint, files=files)
    size = sum((folder.path / file).stat().st_size for file in files)
    say(f"export: wrote {folder.path} ({size / 1e6:.1f} MB)")


def _name(config: Config) -> str:
    return config.model or config.run


def _write_graphs(folder: Path, source: Path, config: Config, form: Format) -> list[str]:
    """Write ONNX graphs, and the page for ``format=web``; the names of the files, first the one
    that describes them."""
    # Imported here: ONNX Runtime is optional.
    from worldmodels.export.folder import write_onnx
    from worldmodels.export.web import write_page

    files = write_onnx(folder, source, _name(config), config.controller.evaluation_temperature)
    return files + (write_page(folder) if form is Format.web else [])
