"""Stage ``export``: a trained agent for other programs, as ONNX or as a page for a browser."""

from __future__ import annotations

from pathlib import Path

from worldmodels.config.choices import ExportFormat
from worldmodels.export.folder import DESCRIPTION, write_onnx
from worldmodels.export.web import PAGE, write_page
from worldmodels.runs.integrity import fingerprint_file
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context


def run(context: Context) -> None:
    """Write the agent of ``model=``, or of this run, in the form of ``format=``.

    Raises:
        ArtifactError: there is no agent, it is damaged, or its models cannot be exported.
        ConfigError: the page's files cannot be had.
    """
    export(context, context.config.format)


def export(context: Context, form: ExportFormat) -> Path:
    """The folder of an exported agent, made where it is not there or is of another agent."""
    config = context.config
    source, inputs = context.inputs.agent()
    run = context.run.within("export", "export")
    name, temperature = config.model or config.run, config.controller.temperature
    content = {"name": name, "controller.temperature": temperature}
    if form is ExportFormat.web:
        inputs |= {path.name: fingerprint_file(path) for path in sorted(PAGE.iterdir())}
    found = run.manifest(form.name) if run.has(form.name) else {}
    other = (found.get("inputs"), found.get("config")) != (inputs, content)
    with run.begin(form.name, content, inputs, overwrite=config.overwrite or other) as folder:
        if folder.complete:
            say(f"export: done before ({folder.path})")
            return folder.path
        files = write_onnx(folder.path, source, name, temperature)
        if form is ExportFormat.web:
            files += write_page(folder.path)
        folder.finish(fingerprint_file(folder.path / DESCRIPTION), files=files)
    size = sum((folder.path / file).stat().st_size for file in files)
    say(f"export: wrote {folder.path} ({size / 1e6:.1f} MB)")
    return folder.path
