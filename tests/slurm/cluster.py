"""A whole Slurm on this machine's loopback, from Debian's packages: accounting, controller, and nodes with fake GPUs.

Every daemon is an ordinary process in the foreground, started by this module and ended by its pid.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NODES = {
    "a1": ("a100", 8),
    "a2": ("a100", 8),
    "a3": ("a100", 8),
    "v1": ("v100", 4),
    "v2": ("v100", 4),
    "c1": ("", 0),
}
USERS = ("user1", "user2", "user3", "user4", "user5")
PROGRAMS = (
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "mariadb",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sbatch",
)
BASE_PORT = 26817


def missing() -> list[str]:
    """Return what this machine lacks for a cluster, in words; empty where one can run."""
    gone = [f"the program {name}" for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if os.geteuid() != 0:
        gone.append("root, which munge and users' jobs need")
    known = {entry.pw_name for entry in pwd.getpwall()}
    return gone + [f"the user {name}" for name in USERS if name not in known]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _wait(what: str, ready: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come up in {seconds:g} s")
        time.sleep(0.2)


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Cluster:
    """A Slurm cluster in a folder of its own.

    Parameters
    ----------
    folder
        Where configuration, state, logs and sockets lie; short, since sockets have short names.
    lua
        The text of ``job_submit.lua``; None for no plugin.
    """

    folder: Path
    lua: str | None = None
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands find this cluster."""
        return {
            "PATH": _path(), "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC",
            "SLURM_CONF": str(self.folder / "etc" / "slurm.conf"),
        }  # fmt: skip

    def start(self) -> "Cluster":
        """Write the configuration and start every daemon; returns once the nodes are idle."""
        for name in ("etc", "run", "log", "state", "spool", "dev", "db"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._configure()
        run = self.folder / "run"
        self._munge(run)
        self._database()
        self._spawn("slurmdbd", "-D", SLURM_CONF=str(self.folder / "etc" / "slurm.conf"))
        _wait("slurmdbd", lambda: _listening(BASE_PORT + 2))
        self._spawn("slurmctld", "-D", "-c")
        _wait("slurmctld", lambda: self.call("scontrol", "ping", check=False).returncode == 0)
        for name in NODES:
            self._spawn("slurmd", "-D", "-N", name)
        _wait(
            "the nodes",
            lambda: self.text("sinfo", "-h", "-N", "-o", "%T").split().count("idle") >= len(NODES),
        )
        self._accounts()
        return self

    def gate(self, *, on: bool) -> None:
        """Let the gate hold jobs, or let all jobs through; Slurm reads the file again when it has changed."""
        assert self.lua is not None
        file = self.folder / "etc" / "job_submit.lua"
        file.write_text(
            self.lua
            if on
            else "function slurm_job_submit() return 0 end\n"
            "function slurm_job_modify() return 0 end\nreturn 0\n"
        )
        time.sleep(1.1)

    def stop(self) -> None:
        """End every daemon by its pid, the last started first."""
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        self.running.clear()

    def call(
        self, *words: str, user: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, as a user where one is given."""
        lead = ("runuser", "-u", user, "--") if user else ()
        done = subprocess.run(
            [*lead, *words], env=self.environment, cwd="/tmp", capture_output=True, text=True, timeout=60
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done

    def text(self, *words: str) -> str:
        """Return what a command prints."""
        return self.call(*words).stdout

    def submit(self, user: str, *words: str, run: str = "sleep 3") -> str:
        """Submit a batch job as a user; returns its id."""
        silent = ("-o", "/dev/null", "-e", "/dev/null")
        told = self.call("sbatch", "--parsable", *silent, *words, "--wrap", run, user=user)
        return told.stdout.strip()

    def _spawn(self, program: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        log = (self.folder / "log" / f"{program}{len(self.running)}.out").open("wb")
        path = shutil.which(program, path=_path())
        assert path is not None, program
        process = subprocess.Popen(
            [path, *words], env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def _munge(self, run: Path) -> None:
        owner = pwd.getpwnam("munge")
        key = self.folder / "etc" / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        for path in (key, run, self.folder / "log"):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        # munged wants every folder above its files closed to other writers
        self._spawn(
            "runuser", "-u", "munge", "--", shutil.which("munged", path=_path()) or "munged", "--force",
            "--foreground", f"--key-file={key}", f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid",
            f"--log-file={self.folder}/log/munged.log", f"--seed-file={run}/munge.seed",
        )  # fmt: skip
        _wait("munged", (run / "munge.sock").exists)

    def _database(self) -> None:
        data, run = self.folder / "db", self.folder / "run"
        subprocess.run(
            ["mariadb-install-db", f"--datadir={data}", "--user=root", "--auth-root-authentication-method=normal"],
            env=self.environment, check=True, capture_output=True,
        )  # fmt: skip
        self._spawn(
            "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={run}/db.sock", "--user=root",
            "--bind-address=127.0.0.1", f"--port={BASE_PORT + 3}", f"--pid-file={run}/db.pid",
            "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0",
        )  # fmt: skip
        _wait("mariadbd", lambda: _listening(BASE_PORT + 3))
        grant = (
            f"create user slurm@localhost identified by '{self.password}';"
            "create user slurm@127.0.0.1 identified by '" + self.password + "';"
            "grant all on slurm_acct_db.* to slurm@localhost; grant all on slurm_acct_db.* to slurm@127.0.0.1;"
        )
        subprocess.run(
            ["mariadb", "--no-defaults", f"--socket={run}/db.sock", "-u", "root", "-e", grant],
            env=self.environment, check=True, capture_output=True,
        )  # fmt: skip

    @property
    def password(self) -> str:
        """The accounting database's password, made once a cluster."""
        file = self.folder / "etc" / "password"
        if not file.exists():
            file.write_text(secrets.token_hex(12))
        return file.read_text()

    def _configure(self) -> None:
        etc, host = self.folder / "etc", socket.gethostname().split(".")[0]
        gres = []
        for name, (kind, gpus) in NODES.items():
            for k in range(gpus):
                (self.folder / "dev" / f"{name}-{k}").touch()
            if gpus:
                gres.append(
                    f"NodeName={name} Name=gpu Type={kind} File={self.folder}/dev/{name}-[0-{gpus - 1}]"
                )
        (etc / "gres.conf").write_text("\n".join(gres) + "\n")
        lines = {
            "ClusterName": "tidegrid", "SlurmctldHost": f"{host}(127.0.0.1)", "SlurmUser": "root", "SlurmdUser": "root",
            "SlurmctldPort": BASE_PORT, "SlurmdPort": BASE_PORT + 1, "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/run/munge.sock", "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": f"{self.folder}/spool/%n", "SlurmctldPidFile": f"{self.folder}/run/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/run/slurmd.%n.pid", "SlurmctldLogFile": f"{self.folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{self.folder}/log/slurmd.%n.log", "SlurmdParameters": "config_overrides",
            "ProctrackType": "proctrack/pgid", "TaskPlugin": "task/none", "MpiDefault": "none", "ReturnToService": 2,
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "bf_interval=3,bf_continue,defer_batch,sched_interval=3",
            "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_Core_Memory", "DefMemPerCPU": 1000,
            "GresTypes": "gpu", "PriorityType": "priority/multifactor", "PriorityWeightAge": 1000,
            "PriorityWeightQOS": 10000, "PreemptType": "preempt/qos", "PreemptMode": "REQUEUE", "JobRequeue": 1,
            "KillWait": 2, "InactiveLimit": 0, "MinJobAge": 600, "SlurmdTimeout": 30,
            "AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": BASE_PORT + 2, "AccountingStoragePass": f"{self.folder}/run/munge.sock",
            "AccountingStorageEnforce": "associations,limits,qos",
            "AccountingStorageTRES": "gres/gpu,gres/gpu:a100,gres/gpu:v100", "AccountingStoreFlags": "job_comment",
            "JobAcctGatherType": "jobacct_gather/none", "JobCompType": "jobcomp/none",
        }  # fmt: skip
        if self.lua is not None:
            lines["JobSubmitPlugins"] = "lua"
            (etc / "job_submit.lua").write_text(self.lua)
        text = [f"{name}={value}" for name, value in lines.items()]
        for k, (name, (kind, gpus)) in enumerate(NODES.items()):
            gpu = f" Gres=gpu:{kind}:{gpus} Feature={kind}" if gpus else " Feature=cpuonly"
            text.append(
                f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={BASE_PORT + 4 + k} CPUs=32 Boards=1 "
                f"SocketsPerBoard=2 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=200000{gpu} State=UNKNOWN"
            )
        text += [
            "PartitionName=gpu Nodes=a[1-3],v[1-2] Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 State=UP",
            "PartitionName=long Nodes=a3,v2,c1 MaxTime=UNLIMITED State=UP",
            "PartitionName=cpu Nodes=c1 MaxTime=UNLIMITED DefaultTime=UNLIMITED State=UP",
        ]
        (etc / "slurm.conf").write_text("\n".join(text) + "\n")
        (etc / "cgroup.conf").write_text("CgroupAutomount=no\n")
        dbd = {
            "AuthType": "auth/munge", "AuthInfo": f"socket={self.folder}/run/munge.sock", "DbdHost": host,
            "DbdAddr": "127.0.0.1", "DbdPort": BASE_PORT + 2, "SlurmUser": "root",
            "LogFile": f"{self.folder}/log/slurmdbd.log", "PidFile": f"{self.folder}/run/slurmdbd.pid",
            "StorageType": "accounting_storage/mysql", "StorageHost": "127.0.0.1", "StoragePort": BASE_PORT + 3,
            "StorageUser": "slurm", "StoragePass": self.password, "StorageLoc": "slurm_acct_db",
        }  # fmt: skip
        file = etc / "slurmdbd.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in dbd.items()))
        file.chmod(0o600)

    def _accounts(self) -> None:
        def manage(*words: str) -> None:
            self.call("sacctmgr", "-i", *words, check=False)

        manage("add", "qos", "low")
        manage("add", "qos", "high", "Priority=100", "Preempt=low")
        manage("modify", "qos", "normal", "set", "Priority=50")
        manage("add", "qos", "capped", "Priority=50", "MaxTRESPerUser=gres/gpu=4")
        for account in ("nlp", "vision"):
            manage("add", "account", account)
        for user in USERS:
            manage(
                "add", "user", user, "account=nlp,vision", "defaultaccount=nlp", "qos=normal,low,high,capped"
            )
        manage("add", "user", "root", "account=nlp")
