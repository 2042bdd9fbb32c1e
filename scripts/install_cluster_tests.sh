#!/bin/sh
# Install what tests/cluster needs: Ray and submitit for Python, Slurm and munge from Debian's packages.
# Never fails: what cannot be installed is named, and its tests are skipped with the same reason.
# Usage: scripts/install_cluster_tests.sh [python]
set -u
python="${1:-python}"

"$python" -m pip install --quiet 'ray>=2.40' || echo "cluster tests: Ray could not be installed; its tests will be skipped"
"$python" -m pip install --quiet 'submitit>=1.5' || echo "cluster tests: submitit could not be installed; the Slurm tests will be skipped"

if command -v slurmctld >/dev/null 2>&1 || [ -x /usr/sbin/slurmctld ]; then
  echo "cluster tests: Slurm is installed"
elif [ "$(id -u)" -ne 0 ]; then
  echo "cluster tests: installing Slurm needs root; its tests will be skipped"
elif ! command -v apt-get >/dev/null 2>&1; then
  echo "cluster tests: no apt-get here; install slurmctld, slurmd, the client commands and munge by hand to run the Slurm tests"
else
  # The tests start their own daemons: nothing of the packages' is to run.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && trap 'rm -f "$policy"' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
  } || echo "cluster tests: Slurm could not be installed; its tests will be skipped"
fi
exit 0
