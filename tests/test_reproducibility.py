"""The answers to the reproducibility checklist are those of the run's own files."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign import archives, imported

from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.reproducibility import render_checklist
from worldmodels.system.devices import has_bfloat16

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")


def answers(page: str) -> dict[str, str]:
    """Question -> answer, as text."""
    found = re.findall(r"<dt>(.*?)</dt>\s*<dd.*?>(.*?)</dd>", page)
    assert len(found) == page.count("<dt>")
    return dict(found)


def test_a_report_has_the_checklist_with_what_the_stages_recorded(smoke: Path) -> None:
    run = smoke / "smoke"
    assert 'href="reproducibility.html"' in (run / "report" / "index.html").read_text()
    page = (run / "report" / "reproducibility.html").read_text()
    found = answers(page)
    manifests = {s: json.loads((run / s / "manifest.json").read_text()) for s in STAGES}
    rollouts = manifests["rollouts"]["summary"]
    examples = found["Relevant statistics, such as the number of examples."]
    assert f"{rollouts['episodes']} episodes with {rollouts['frames']:,} frames" in examples
    scores = json.loads((run / "evaluate" / "scores.json").read_text())["agent"]
    mean, spread = np.mean(scores["returns"]), np.std(scores["returns"], ddof=1)
    results = found["The results with a measure of central tendency and of variation."]
    assert f"agent: mean {mean:,.1f}, standard deviation {spread:,.1f}" in results
    splits = found["The details of the splits into training, validation and test."]
    share = manifests["vae"]["config"]["vae.validation_fraction"]
    assert f"{share:.0%} of the episodes validate the encoder" in splits
    assert f"those of seeds {scores['seeds'][0]} to {scores['seeds'][-1]}" in splits
    fingerprint = manifests["controller"]["fingerprint"]
    assert f"controller {fingerprint}" in found["The trained models."]
    arithmetic = "bfloat16" if has_bfloat16(torch.device("cpu")) else "float32"
    machine = f"{manifests['vae']['machine']}, networks on cpu, {arithmetic}"
    assert {manifest["device"] for manifest in manifests.values()} == {f"cpu, {arithmetic}"}
    assert found["A description of the computing infrastructure."] == f"{machine}."
    assert machine in (run / "report" / "index.html").read_text()
    assert "To be answered by the authors." in page
    for stage, manifest in manifests.items():
        for key in manifest["config"]:
            assert re.search(rf">{stage}</th><td>{re.escape(key)}</td>", page)


def test_the_time_limit_is_given_as_a_command_takes_it(smoke: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke / "smoke/rollouts", tmp_path / "rollouts")
    manifest = tmp_path / "rollouts/manifest.json"
    record = read_json(manifest)
    del record["crc32"]
    record["config"] |= {"env.max_steps": 250, "env.frame_skip": 4}
    write_json(manifest, record)
    page = render_checklist("it", {"rollouts": tmp_path / "rollouts"})
    assert re.search(r"env\.max_steps</td>\s*<td>1000</td>", page)


def test_the_machine_of_an_older_version_has_no_device(smoke: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke / "smoke/rollouts", tmp_path / "rollouts")
    manifest = tmp_path / "rollouts/manifest.json"
    record = read_json(manifest)
    del record["crc32"], record["device"]
    write_json(manifest, record)
    found = answers(render_checklist("it", {"rollouts": tmp_path / "rollouts"}))
    assert found["A description of the computing infrastructure."] == f"{record['machine']}."


def test_questions_that_a_run_cannot_answer_are_open(smoke: Path) -> None:
    page = (smoke / "smoke" / "report" / "reproducibility.html").read_text()
    is_open = [q for q, answer in answers(page).items() if answer.startswith("To be answered")]
    assert len(is_open) == 2
    assert is_open[0].startswith("A link to a version of the data set")
    assert is_open[1].startswith("The range of hyperparameters considered")


def test_a_run_of_imported_episodes_alone_says_so(tmp_path: Path) -> None:
    imported(tmp_path / "data", archives(tmp_path / "source"), "numpy")
    page = render_checklist("<b>other", {"rollouts": tmp_path / "data" / "other" / "rollouts"})
    found = answers(page)
    collected = next(answer for question, answer in found.items() if "new data" in question)
    assert collected.startswith("Imported: ")
    assert "&lt;b&gt;other" in page
    assert "<b>" not in page
    assert "not finished" in found["A clear definition of the measure used to report results."]


def test_scores_are_said_to_be_of_new_seeds_only_where_the_episodes_were_simulated(
    smoke: Path, tmp_path: Path
) -> None:
    imported(tmp_path / "data", archives(tmp_path / "source"), "numpy")
    run = smoke / "smoke"
    made = {"evaluate": run / "evaluate", "rollouts": run / "rollouts"}
    claim, warning = (
        "no score is of a seed that was used before",
        "Imported episodes keep the seeds",
    )
    page = render_checklist("it", made)
    assert claim in page
    assert warning not in page
    other = tmp_path / "data" / "other" / "rollouts"
    for found in ({"rollouts": other}, {"bootstrap/rollouts": other}):
        page = render_checklist("it", made | found)
        assert claim not in page
        assert warning in page
    page = render_checklist("it", {"evaluate": run / "evaluate"})
    assert claim not in page
    assert warning not in page


def test_a_damaged_manifest_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"config": {}, "wall_s": "long"}')
    with pytest.raises(ArtifactError, match=r"manifest\.json: .* is"):
        render_checklist("other", {"vae": tmp_path})
