"""A real SLURM of one node on the loopback, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from patience import PATIENCE, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "setpriv")
SBIN = os.pathsep.join(["/usr/local/sbin", "/usr/sbin", "/sbin"])

CONFIGURATION = """
ClusterName=ci
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={d}/munge/munge.sock,cred_expire=30
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool
SlurmctldPidFile={d}/run/slurmctld.pid
SlurmdPidFile={d}/run/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
EnforcePartLimits=ALL
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0
PriorityType=priority/basic
ReturnToService=2
MinJobAge=3600
KillWait=120
MessageTimeout=100
TCPTimeout=60
BatchStartTimeout=600
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 \
RealMemory=256000 Gres=gpu:4 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes={host} Default=NO MaxTime=INFINITE State=UP
"""
"""More CPUs, memory and GPUs than there are: SLURM counts them, and here nothing holds a job to what it asked for."""

GPUS = "NodeName={host} Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/random\n"
SRUN = '#!/bin/sh\nSLURM_CONF={d}/slurm.conf exec {srun} "$@"\n'
"""Job steps are started without the variables of SLURM. Elsewhere its configuration is found in /etc."""

OF_ANOTHER = ("SLURM_", "SBATCH_", "SRUN_", "FEDSHIFT_", "PYTHON")
"""Variables of the caller's environment that are not for this cluster."""


def missing() -> list[str]:
    """Programs that are not installed."""
    return [name for name in PROGRAMS if not _found(name)]


def _found(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], SBIN]))


def plain_python(folder: Path) -> str:
    """Return the path of this Python through a link in `folder`. Snakemake does not quote a path with a space."""
    environment = folder / "environment"
    environment.symlink_to(sys.prefix)
    return str(environment / "bin" / Path(sys.executable).name)


@dataclass(frozen=True)
class Cluster:
    """A running SLURM: its folder, and the environment in which its commands find it."""

    folder: Path
    environment: dict[str, str]

    def ask(self, *command: str) -> str:
        """Return what a command of SLURM prints."""
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def jobs(self) -> dict[str, dict[str, str]]:
        """Return all jobs so far, by id, as `scontrol show job` prints them."""
        told = self.ask("scontrol", "--oneliner", "show", "jobs").splitlines()
        found = [dict(re.findall(r"(\S+?)=(.*?) *(?= \S+?=|$)", line)) for line in told if line.startswith("JobId=")]
        return {job["JobId"]: job for job in found}


@contextmanager
def started() -> Iterator[Cluster]:
    """Start the daemons as children of this process, which do not outlive it, and stop them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # not pytest's: names of sockets must be short
    try:
        with ExitStack() as daemons:
            cluster = _configured(folder)
            munge = folder / "munge"
            files = [f"--{n}={munge}/munge.{e}" for n, e in _MUNGE.items()]
            daemons.enter_context(_daemon(cluster, "munged", "--foreground", *files))
            until((munge / "munge.sock").exists, "munged")
            daemons.enter_context(_daemon(cluster, "slurmctld", "-D", "-f", str(folder / "slurm.conf")))
            daemons.enter_context(_daemon(cluster, "slurmd", "-D", "-f", str(folder / "slurm.conf")))
            until(lambda: _idle(cluster), "an idle node")
            daemons.callback(_cancel, cluster)
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_MUNGE = {"socket": "sock", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _configured(folder: Path) -> Cluster:
    folder.chmod(0o755)
    for name in ("munge", "state", "spool", "run", "bin"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    about = {"d": folder, "host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "ports": _ports()}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**about), encoding="utf-8")
    (folder / "gres.conf").write_text(GPUS.format(**about), encoding="utf-8")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
    srun = folder / "bin" / "srun"
    srun.write_text(SRUN.format(srun=_found("srun"), **about), encoding="utf-8")
    srun.chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"], SBIN])
    kept = {key: value for key, value in os.environ.items() if not key.startswith(OF_ANOTHER)}
    return Cluster(folder, kept | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path})


def _ports(count: int = 2) -> list[int]:
    """Free ones."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _daemon(cluster: Cluster, name: str, *words: str) -> Iterator[None]:
    log = cluster.folder / f"{name}.log"
    command = ["setpriv", "--pdeathsig", "KILL", str(_found(name)), *words]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=cluster.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield
    except TimeoutError as error:
        raise RuntimeError(f"{name} said:\n{log.read_text(errors='replace')[-2000:]}") from error
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _idle(cluster: Cluster) -> bool:
    with contextlib.suppress(RuntimeError):  # slurmctld does not answer yet
        return cluster.ask("sinfo", "--noheader", "--partition=cpu", "--format=%T").strip() == "idle"
    return False


def _cancel(cluster: Cluster) -> None:
    """End what still runs, and its keepers, which would outlive the daemons."""
    cluster.ask("scancel", "--user", getpass.getuser())
    with contextlib.suppress(TimeoutError):
        until(lambda: not _keepers(cluster), "the last job")
    for pid in _keepers(cluster):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _keepers(cluster: Cluster) -> list[int]:
    """Each running job step of this cluster has one: a process of another session, adopted by init."""
    mine, found = f"SLURM_CONF={cluster.folder}/slurm.conf".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().startswith("slurmstepd") and mine in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found
