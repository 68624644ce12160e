"""What happened: job and traffic history, read, validated, and cut at what was known."""

from tidegrid.data.cluster import Cluster, block_size, read_cluster, rounded_sizes, write_cluster
from tidegrid.data.formats import read_jobs
from tidegrid.data.history import History, request_features
from tidegrid.data.instants import as_instant, slurm_minutes
from tidegrid.data.inventory import App, Capacity, Maintenance, Pool, Tenant
from tidegrid.data.readers import read_requests, read_running
from tidegrid.data.running import check_running, gpu_ids, on_down_gpus, place_running
from tidegrid.data.schema import validate
from tidegrid.data.tables import JOBS, KINDS, REQUESTS, RUNNING, TABLES, TRAFFIC, VARIANTS
from tidegrid.data.trace import TraceDay, requests_from_trace
from tidegrid.data.traffic import DEFAULT_START, fill_gaps, read_traffic, regular_hours
from tidegrid.data.writers import write_table

__all__ = [
    "DEFAULT_START",
    "JOBS",
    "KINDS",
    "REQUESTS",
    "RUNNING",
    "TABLES",
    "TRAFFIC",
    "VARIANTS",
    "App",
    "Capacity",
    "Cluster",
    "History",
    "Maintenance",
    "Pool",
    "Tenant",
    "TraceDay",
    "as_instant",
    "block_size",
    "check_running",
    "fill_gaps",
    "gpu_ids",
    "on_down_gpus",
    "place_running",
    "read_cluster",
    "read_jobs",
    "read_requests",
    "read_running",
    "read_traffic",
    "regular_hours",
    "request_features",
    "requests_from_trace",
    "rounded_sizes",
    "slurm_minutes",
    "validate",
    "write_cluster",
    "write_table",
]
