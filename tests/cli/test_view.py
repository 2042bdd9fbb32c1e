from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request

from orthocl.cli.app import call


def test_the_page_is_served_until_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "orthocl", "view", "--store", str(tmp_path / "store")]
    environment = os.environ | {"COLUMNS": "200"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        line = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", line).group()
        with urllib.request.urlopen(address) as answer:
            assert "No run has finished yet." in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().startswith("view ended\nnext: ")
        assert process.wait() == 0
    assert not (tmp_path / "store").exists(), "looking makes nothing"


def test_a_port_that_cannot_be(tmp_path, capsys):
    assert call(["view", "--store", str(tmp_path), "--port", "70000"]) == 2
    assert "cannot listen on port 70000" in capsys.readouterr().err
