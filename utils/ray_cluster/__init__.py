"""Ray on this machine or on a cluster (`cluster.Cluster`).

Ray reads these settings when it is imported, so they are made here. A folder whose modules import Ray imports this
package in its `__init__`.
"""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns that it will change this default
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")  # its log is in Ray's folder
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # a slow processor needs more than 5
os.environ.setdefault("RAY_enable_metrics_collection", "0")  # its ports would be open to the network, without a token,
for port in ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT"):
    os.environ.setdefault(port, "65536")  # as would these two; with a number that is no port they do not open
