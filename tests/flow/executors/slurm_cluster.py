"""A Slurm cluster of one node on this machine's loopback, in a folder of its own, that is really ended: its daemons are
this process's children."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis.serve.server_process import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "sinfo", "setpriv")
READY_S = 60.0
CONF = """\
ClusterName=osmosistest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SlurmctldPort={ctld}
SlurmdPort={slurmd}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=1
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.log
ReturnToService=2
MinJobAge=600
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
NodeName={host} NodeAddr=127.0.0.1 NodeHostname={host} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no cluster here; empty when there can."""
    if os.geteuid() != 0:
        return "its daemons run as root"
    missing = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    return f"{', '.join(missing)} missing: apt-get install slurm-wlm munge" if missing else ""


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclass(frozen=True)
class SlurmCluster:
    folder: Path
    environ: dict[str, str]
    node: str

    def say(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def kept(self) -> bytes:
        """All that Slurm stores, and all that it shows."""
        files = b"".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())
        shown = self.say("scontrol", "show", "job", "-dd") + self.say("squeue", "-t", "all", "-O", "ALL")
        return files + shown.encode()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    conf, key = folder / "slurm.conf", folder / "munge.key"
    conf.write_text(CONF.format(host=host, folder=folder, ctld=free_port(), slurmd=free_port()))
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environ = {**os.environ, "PATH": _path(), "SLURM_CONF": str(conf)}
    munge = ["munged", "-F", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in (munge, ["slurmctld", "-D", "-f", str(conf)], ["slurmd", "-D", "-f", str(conf)]):
            with (folder / f"{words[0]}.out").open("wb") as output:
                started.append(subprocess.Popen(words, env=environ, stdout=output, stderr=output))
        cluster = SlurmCluster(folder, environ, host)
        _wait_until_idle(cluster)
        yield cluster
        subprocess.run(["scancel", "-u", "root"], env=environ, capture_output=True, timeout=60, check=False)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def _wait_until_idle(cluster: SlurmCluster) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        seen = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=cluster.environ, capture_output=True, text=True, check=False
        )
        if seen.stdout.strip() == "idle":
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"slurm did not come up: {seen.stdout}{seen.stderr}")
        time.sleep(0.2)
