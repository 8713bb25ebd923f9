"""Stage ``export``: a trained agent for other programs."""

from __future__ import annotations

from pathlib import Path

from worldmodels.config.choices import Format
from worldmodels.config.schema import Config
from worldmodels.extras import GRAPHS
from worldmodels.runs.integrity import fingerprint_file
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.model_card import evaluation_of, write_hub


def run(context: Context) -> None:
    """Write the agent of ``model=``, or of this run, in the form of ``format=``.

    Raises:
        ArtifactError: there is no agent, it is damaged, or its models cannot be exported.
        ConfigError: the page's files cannot be had.
    """
    export(context, context.config.format)


def export(context: Context, form: Format) -> Path:
    """The folder of an exported agent, made where it is not there or is of another agent."""
    config = context.config
    source, inputs = context.inputs.agent()
    run = context.run.within("export", "export")
    content = {"name": _name(config), "controller.temperature": config.controller.temperature}
    evaluation = None
    if form is Format.huggingface:
        evaluation = evaluation_of(context.run, inputs)
        inputs |= {} if evaluation is None else {"evaluate": evaluation.fingerprint}
    if form is Format.web:
        from worldmodels.export.web import PAGE

        inputs |= {path.name: fingerprint_file(path) for path in sorted(PAGE.iterdir())}
    found = run.manifest(form.name) if run.has(form.name) else {}
    other = (found.get("inputs"), found.get("config")) != (inputs, content)
    with run.begin(form.name, content, inputs, overwrite=config.overwrite or other) as folder:
        context.note_fetched(folder)
        if folder.complete:
            say(f"export: done before ({folder.path})")
            return folder.path
        if form in GRAPHS:
            files = _write_graphs(folder.path, source, config, form)
        else:
            files = write_hub(context, folder.path, source, evaluation)
        folder.finish(fingerprint_file(folder.path / files[0]), files=files)
    size = sum((folder.path / file).stat().st_size for file in files)
    say(f"export: wrote {folder.path} ({size / 1e6:.1f} MB)")
    return folder.path


def _name(config: Config) -> str:
    return config.model or config.run


def _write_graphs(folder: Path, source: Path, config: Config, form: Format) -> list[str]:
    """Write ONNX graphs, and the page for ``format=web``; the names of the files, first the one
    that describes them."""
    # Imported here: ONNX Runtime is optional.
    from worldmodels.export.folder import write_onnx
    from worldmodels.export.web import write_page

    files = write_onnx(folder, source, _name(config), config.controller.temperature)
    return files + (write_page(folder) if form is Format.web else [])
