#!/bin/sh
# Install what the browser tests need: Playwright and axe for Python, Chromium from Debian's packages.
# Never fails: what cannot be installed is named, and its tests are skipped with the same reason.
# Usage: scripts/install_browser_tests.sh [python]
set -u
python="${1:-python}"

"$python" -m pip install --quiet 'playwright>=1.45' 'axe-playwright-python>=0.1.4' ||
  echo "browser tests: Playwright could not be installed; they will be skipped"

if command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1; then
  echo "browser tests: Chromium is installed"
elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "browser tests: install Chromium by hand (with apt-get and as root it is done here); they will be skipped"
else
  export DEBIAN_FRONTEND=noninteractive
  {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
  } || echo "browser tests: Chromium could not be installed; they will be skipped"
fi
exit 0
