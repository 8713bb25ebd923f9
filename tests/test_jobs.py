"""How jobs are shared out, and how their files travel, without any worker."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from command import composed

from worldmodels.config import limits
from worldmodels.errors import ConfigError, WorkerError
from worldmodels.stages.evaluate import RecordedBatch
from worldmodels.workers.jobs import READ, WRITTEN
from worldmodels.workers.queue import ATTEMPTS, LATE, JobQueue, Task
from worldmodels.workers.transfer import (
    Misplaced,
    done_elsewhere,
    inputs_of,
    read_tree,
    write_outputs,
)
from worldmodels.worlds.collect import CollectShard, NoisyAgent
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec


def begin(queue: JobQueue, now: float) -> Task:
    task = queue.next(now)
    assert task is not None
    return task


def test_jobs_are_done_in_order_and_batches_end_on_their_own() -> None:
    queue = JobQueue()
    first, second = queue.submit("ab"), queue.submit("c")
    a, b, c = (begin(queue, 0) for _ in range(3))
    assert queue.next(0) is None
    assert [task.job for task in (a, b, c)] == ["a", "b", "c"]
    queue.finish(c, "C", 1)
    queue.finish(b, "B", 1)
    assert list(second.take()) == [(0, "C")]
    assert (first.missing, second.missing, queue.open) == (1, 0, 1)
    queue.finish(a, "A", 1)
    assert list(first.take()) == [(1, "B"), (0, "A")]
    assert queue.open == 0


def test_a_lost_job_is_the_next_one() -> None:
    queue = JobQueue()
    batch = queue.submit("abc")
    lost = begin(queue, 0)
    queue.lose(lost, "died")
    assert begin(queue, 1) is lost
    assert begin(queue, 1).job == "b"
    assert batch.missing == 3


def test_a_job_that_loses_every_worker_is_given_up_unless_the_machines_were_at_fault() -> None:
    queue = JobQueue()
    queue.submit("a")
    for _ in range(2 * ATTEMPTS):
        queue.lose(begin(queue, 0), "died", blamed=False)
    for _ in range(ATTEMPTS - 1):
        queue.lose(begin(queue, 0), "died")
    with pytest.raises(WorkerError, match=f"a worker died on each of {ATTEMPTS} attempts at job 0"):
        queue.lose(begin(queue, 0), "died")


def test_a_late_job_gets_a_second_worker_and_the_first_result_counts() -> None:
    queue = JobQueue()
    batch = queue.submit("abc")
    a, b = begin(queue, 0), begin(queue, 0)
    queue.finish(a, "A", 10)
    assert queue.late(1000) is None  # a job is waiting: free workers do that one
    c = begin(queue, 10)
    assert queue.late(10 * LATE) is None
    assert queue.late(10 * LATE + 1) is b
    assert queue.late(10 * LATE + 1) is None  # two are enough
    queue.finish(b, "B", 30)
    queue.finish(b, "the same, later", 40)
    queue.finish(c, "C", 40)
    assert list(batch.take()) == [(0, "A"), (1, "B"), (2, "C")]


def test_a_job_that_loses_one_of_two_workers_is_not_given_to_a_third() -> None:
    queue = JobQueue()
    batch = queue.submit("ab")
    queue.finish(begin(queue, 0), "A", 1)
    b = begin(queue, 0)
    assert queue.late(9) is b
    queue.lose(b, "died", blamed=False)
    assert queue.next(9) is None
    queue.finish(b, "B", 10)
    assert batch.missing == 0


@dataclass(frozen=True)
class Policy:
    folder: Path = field(metadata=READ)


@dataclass(frozen=True)
class Copy:
    """Writes into one file what it reads in another."""

    policy: Policy
    output: Path = field(metadata=WRITTEN)

    def __call__(self) -> str:
        found = (self.policy.folder / "deep" / "name").read_text()
        self.output.write_text(found.upper())
        return str(self.policy.folder)


def test_a_job_reads_copies_and_what_it_writes_comes_to_its_place(tmp_path: Path) -> None:
    (tmp_path / "agent" / "deep").mkdir(parents=True)
    (tmp_path / "agent" / "deep" / "name").write_text("text")
    job = Copy(Policy(tmp_path / "agent"), tmp_path / "out" / "file")
    trees = [{path: read_tree(path)} for path in inputs_of(job)]
    folder, outputs = done_elsewhere(job, trees, lambda placed: placed())
    assert folder != str(tmp_path / "agent")
    assert not Path(folder).exists()
    assert not job.output.exists()
    write_outputs(outputs)
    assert job.output.read_text() == "TEXT"


def test_errors_name_the_files_of_the_user(tmp_path: Path) -> None:
    job = Copy(Policy(tmp_path / "agent"), tmp_path / "file")
    trees = [{path: read_tree(path)} for path in inputs_of(job)]
    with pytest.raises(Misplaced) as raised:
        done_elsewhere(job, trees, lambda placed: placed())
    line = raised.value.corrected(str(raised.value.error))
    assert str(tmp_path / "agent" / "deep" / "name") in line


def test_an_error_about_a_file_that_is_being_written_names_the_folder_of_the_user(
    tmp_path: Path,
) -> None:
    job = Copy(Policy(tmp_path / "agent"), tmp_path / "made" / "file")

    def fail(placed: Copy) -> None:
        raise OSError(f"{placed.output.parent}/.file.7.tmp: no space; {placed.output}")

    with pytest.raises(Misplaced) as raised:
        done_elsewhere(job, [], fail)
    line = raised.value.corrected(str(raised.value.error))
    assert line == f"{tmp_path}/made/.file.7.tmp: no space; {tmp_path}/made/file"


@dataclass(frozen=True)
class Compare:
    """Reads two folders, which may be the same, and another file."""

    first: Policy
    second: Policy
    other: Path = field(metadata=READ)

    def __call__(self) -> list[str]:
        read = [(policy.folder / "name").read_text() for policy in (self.first, self.second)]
        return [*read, self.other.read_text()]


def test_a_path_that_a_job_names_twice_is_copied_once(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "name").write_text("text")
    (tmp_path / "other").write_text("more")
    agent = Policy(tmp_path / "agent")
    job = Compare(agent, agent, tmp_path / "other")
    trees = [{path: read_tree(path)} for path in inputs_of(job)]
    assert done_elsewhere(job, trees, lambda placed: placed())[0] == ["text", "text", "more"]


@pytest.mark.parametrize(
    "kind", [RealWorldSpec, DreamWorldSpec, CollectShard, NoisyAgent, RecordedBatch]
)
def test_every_path_of_a_setup_or_job_is_one_that_it_reads_or_writes(kind: Any) -> None:
    hints = get_type_hints(kind)
    named = [one for one in fields(kind) if hints[one.name] in (Path, Path | None)]
    assert named
    assert all(one.metadata in (READ, WRITTEN) for one in named)


def test_ray_without_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^workers.processes=0: .*workers=local"):
        limits.check(composed("workers=ray", "workers.processes=0"))
