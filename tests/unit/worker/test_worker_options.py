"""`worker.toml` and the flags beside it, and the script that a scheduler is given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis.cli.worker import WorkerFlags, worker_config
from osmosis.errors import OsmosisError
from osmosis.records.config.worker import ResourceNeeds, SlurmOptions, WorkerConfig, fill_placeholders
from osmosis.records.run.job import JobEntry
from osmosis.worker.executors import executor_for
from osmosis.worker.executors.command import Programs, job_script
from osmosis.worker.executors.executor import JobStart
from osmosis.worker.executors.slurm import SlurmExecutor, _gpus, _resource_options

DOCS = Path(__file__).parents[3] / "docs" / "scaling.md"
EXAMPLES = Path(__file__).parents[3] / "examples" / "executors"
COMMANDS = 'executor = "command"\n[command]\nstart = "go {name}"\nlist = "show"\nend = "end {id}"\n'


def written(folder: Path, text: str) -> Path:
    (folder / "worker.toml").write_text(text)
    return folder / "worker.toml"


def test_a_flag_wins_over_its_key_and_labels_are_added(tmp_path: Path) -> None:
    file = written(
        tmp_path, 'max_jobs = 3\nexecutor = "ray"\nlabels = {gpu = "a"}\n[ray]\naddress = "http://a"\ncpus = 2\n'
    )
    config = worker_config(file, WorkerFlags(max_jobs=5, labels=["gpu=b", "at=x"], ray_address="http://b"))
    assert (config.max_jobs, config.executor, config.labels) == (5, "ray", {"gpu": "b", "at": "x"})
    assert (config.ray.address, config.ray.cpus) == ("http://b", 2)


def test_how_training_jobs_are_reached_comes_from_the_file_and_the_flags(tmp_path: Path) -> None:
    file = written(tmp_path, '[gate]\nadvertise_url = "https://a.example.com"\nlisten = "127.0.0.1:7577"\n')
    config = worker_config(file, WorkerFlags(advertise_url="https://b.example.com/{port}"))
    assert (config.gate.advertise_url, config.gate.listen) == ("https://b.example.com/{port}", "127.0.0.1:7577")


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("", WorkerFlags(advertise_url="http://b.example.com", gate_listen="0.0.0.0:7577"), "is plain http"),
        ("", WorkerFlags(gate_listen="7577"), "gate.listen: Value error, must be host:port"),
        ("max_job = 1", WorkerFlags(), "max_job: no such key"),
        ('max_jobs = "3"', WorkerFlags(), "max_jobs: Input should be a valid integer"),
        ("max_jobs = ", WorkerFlags(), "worker.toml: Invalid value"),
        ("", WorkerFlags(executor="command"), r"add \[command\] with start, list and end"),
        (
            COMMANDS.replace("{name}", "{nam}"),
            WorkerFlags(),
            r"command.start: knows no {nam} \(fix: its placeholders: ",
        ),
        (COMMANDS.replace(" {id}", ""), WorkerFlags(), "command.end: does not say which job"),
        (COMMANDS + 'id_pattern = "("', WorkerFlags(), "is no regular expression"),
        ("", WorkerFlags(executor="slurm", ray_address="http://a"), "contradict each other"),
        ("", WorkerFlags(labels=["x"]), "write KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(tmp_path: Path, text: str, flags: WorkerFlags, said: str) -> None:
    with pytest.raises(OsmosisError, match=said):
        worker_config(written(tmp_path, text), flags)


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_good(file: Path) -> None:
    assert worker_config(file, WorkerFlags()).executor != "local"


def test_what_the_docs_show_is_good(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    shown = [worker_config(written(tmp_path, text), WorkerFlags()) for text in blocks if "executor =" in text]
    assert {config.executor for config in shown} == {"slurm", "ray", "command"}
    example = worker_config(EXAMPLES / "task-spooler.toml", WorkerFlags())
    assert next(config for config in shown if config.command).command == example.command


def test_nothing_of_ray_is_imported() -> None:
    code = (
        "import sys; from osmosis.cli import worker; import osmosis.worker.executors.ray;"
        "print([name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"


def test_no_word_of_a_job_becomes_two_of_the_scheduler() -> None:
    assert fill_placeholders(["go", "-n{name}", "{id}"], {"name": "a b; $(c) {id}"}) == [
        "go",
        "-na b; $(c) {id}",
        "{id}",
    ]


def starts(*tickets: str) -> list[JobStart]:
    return [
        JobStart("https://p/api/jobs/r", JobEntry(ticket=one, work_dir="$HOME/a'b", cache_dir="/c")) for one in tickets
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_a_script_gives_each_task_its_own_entry_untouched_by_the_shell(count: int) -> None:
    jobs = starts(*(f"ost_$(id)`{number}`" for number in range(count)))
    variable = "TASK" if count > 1 else ""
    text = job_script(jobs, ["sh", "-c", "cat; echo; echo $0 $1"], index_variable=variable)
    for number in range(count):
        done = subprocess.run(
            ["sh"], input=text, env={**os.environ, "TASK": str(number)}, capture_output=True, text=True, check=True
        )
        entry, *rest = done.stdout.split("\n", 1)
        assert JobEntry.model_validate(json.loads(entry)) == jobs[number].entry
        assert rest[0].split() == ["--run", "https://p/api/jobs/r"]


def test_an_entry_has_a_lease_or_a_ticket() -> None:
    for wrong in ({}, {"lease": "a", "ticket": "b"}):
        with pytest.raises(ValueError, match="a lease or a ticket"):
            JobEntry(work_dir="w", cache_dir="c", **wrong)


def test_the_programs_of_a_scheduler_are_given_no_secret() -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "OSMOSIS_WORKER_TOKEN": "t",
        "OPENAI_API_KEY": "k",
        "SLURM_CONF": "c",
        "MY": "m",
    }
    code = "import os; print(*sorted(set(os.environ) - {'LC_CTYPE', '__CF_USER_TEXT_ENCODING'}))"
    programs = Programs(environ, names=["MY"], prefixes=("SLURM_",))
    assert programs.say([sys.executable, "-c", code]).split() == ["MY", "PATH", "SLURM_CONF"]


def test_what_a_run_needs_is_what_slurm_is_asked_for() -> None:
    needs = ResourceNeeds(cpus=1.5, memory="2GB", gpus=2, disk="1GB", wall_s=60)
    asked = ["--cpus-per-task=2", "--mem=2048M", "--gres=gpu:2", "--tmp=1024M", "--time=16"]
    assert _resource_options(needs, 900) == asked
    assert _resource_options(ResourceNeeds(), 900) == []
    assert [_gpus(text) for text in ("(null)", "gpu:4", "gpu:a100:4(S:0-1),tmp:1", "gpu,gpu:v:2")] == [0, 4, 4, 3]


def test_a_template_needs_one_place_for_the_job(tmp_path: Path) -> None:
    file = tmp_path / "template.sh"
    for text in ("#!/bin/sh\nmodule load x\n", "{job}\n", "#!/bin/sh\n{job}\n{job}\n"):
        file.write_text(text)
        with pytest.raises(OsmosisError, match=r"one line \{job\}"):
            SlurmExecutor(SlurmOptions(template=str(file)), ["j"], {}, folder=tmp_path)


def test_slurm_is_asked_for_where_it_is_missing(tmp_path: Path) -> None:
    config = worker_config(None, WorkerFlags(executor="slurm"))
    with pytest.raises(OsmosisError, match="sbatch, squeue, scancel, sinfo not found"):
        executor_for(config, {"PATH": str(tmp_path)}, local_command=("j",), folder=tmp_path)


def test_a_machine_offers_its_gpus(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559'; echo 'NVIDIA H100, 81559'\n")
    program.chmod(0o755)
    executor = executor_for(WorkerConfig(), {"PATH": f"{tmp_path}:/usr/bin:/bin"}, local_command=(), folder=tmp_path)
    assert executor.resources().gpus == 2
