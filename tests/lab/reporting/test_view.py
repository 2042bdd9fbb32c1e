from __future__ import annotations

import http.client
import json
import socket
import struct
import threading

import pytest

from orthocl.cli.view import look_at
from orthocl.errors import StoreError
from orthocl.lab.reporting import view_server
from orthocl.lab.reporting.chosen_runs import RecordCache, chosen
from orthocl.lab.reporting.live_runs import live_runs
from orthocl.lab.reporting.view_server import ViewServer


@pytest.fixture
def server(make_runs, fill, store):
    store = fill(store, make_runs(streams=["rotated"]))
    cache = RecordCache(store)
    made = ViewServer(lambda: look_at(cache, None, None))
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_its_news(server):
    answer, body = ask(server)
    assert answer.status == 200
    assert b'data-live="/data.json"' in body
    assert answer.headers["X-Frame-Options"] == "DENY"
    answer, body = ask(server, "/data.json")
    assert [group["label"] for group in json.loads(body)["groups"]] == ["sgd", "ewc", "ogd", "ogd+"]
    again, nothing = ask(server, "/data.json", If_None_Match=answer.headers["ETag"])
    assert (again.status, nothing) == (304, b"")
    assert ask(server, "/other")[0].status == 404
    assert ask(server, "/", "HEAD")[1] == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_can_only_be_read(server, method):
    assert ask(server, "/", method)[0].status == 405


def test_other_hosts_and_origins_are_refused(server):
    port = server.server_port
    assert ask(server, Host="evil.example")[0].status == 403
    assert ask(server, Host=f"evil.example:{port}")[0].status == 403
    assert ask(server, "/data.json", Origin="http://evil.example")[0].status == 403
    assert ask(server, "/data.json", Origin="null")[0].status == 403
    assert ask(server, "/data.json", Sec_Fetch_Site="cross-site")[0].status == 403
    assert (
        ask(server, "/data.json", Origin=f"http://localhost:{port}", Host=f"localhost:{port}")[0].status
        == 200
    )
    assert "Access-Control-Allow-Origin" not in ask(server, "/data.json")[0].headers


def test_a_browser_that_leaves_is_no_error(server, capfd):
    for request in (b"GET / HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.server_port, b"GET", b""):
        with socket.create_connection(server.server_address) as browser:
            browser.sendall(request)
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves at once
    server.look = lambda: {}["a bug"]  # which is reported, unlike the browsers
    with pytest.raises(http.client.HTTPException):
        ask(server)
    error = capfd.readouterr().err
    assert "a bug" in error
    assert "ConnectionResetError" not in error
    assert "BrokenPipeError" not in error


def test_a_store_that_cannot_be_read_is_an_answer(server):
    def look():
        raise PermissionError(13, "Permission denied")

    server.look = look
    answer, body = ask(server)
    assert (answer.status, body) == (500, b"[Errno 13] Permission denied\n")


def test_silent_browsers_are_few_and_hang_up(server, monkeypatch):
    monkeypatch.setattr(view_server._Handler, "timeout", 0.3)
    silent = [
        socket.create_connection(server.server_address) for _ in range(3 * view_server.MOST_CONNECTIONS)
    ]
    ended = [connection.recv(1) for connection in silent]  # each is closed, at once or after its time
    assert ended == [b""] * len(silent)
    for connection in silent:
        connection.close()
    assert ask(server)[0].status == 200


def test_there_is_a_limit_of_connections(server):
    silent = [socket.create_connection(server.server_address) for _ in range(view_server.MOST_CONNECTIONS)]
    late = socket.create_connection(server.server_address)
    late.settimeout(view_server.SECONDS / 2)
    assert late.recv(1) == b""
    for connection in (*silent, late):
        connection.close()


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(StoreError, match="cannot listen on port"):
        ViewServer(server.look, server.server_port)


def test_a_run_on_its_way_is_shown(store, tiny):
    settings = tiny("ogd+", 3)
    store.folder("abc").mkdir(parents=True)
    store.begin("abc", settings, {})
    rows = [[0.1, 0.1, 0.1], [0.9, 0.1, 0.1], [0.7, 0.5, 0.1]]
    lines = [json.dumps({"after_task": number, "accuracies": row}) for number, row in enumerate(rows)]
    (store.folder("abc") / "progress.jsonl").write_text("\n".join([*lines, '{"half']))
    given = look_at(RecordCache(store), None, None)
    assert given.pairs == []
    (run,) = given.live
    assert (run.state, run.tasks, run.accuracies) == ("unfinished", 3, (0.9, pytest.approx(0.6)))
    assert run.to_values()["method"] == "ogd+"


def test_a_finished_run_is_on_its_way_no_more(make_runs, fill, store):
    pairs = make_runs(streams=["rotated"])
    store = fill(store, pairs)
    assert live_runs(store, [(run, None) for run in store.ids()]) == []


def test_a_damaged_record_is_skipped_and_a_repaired_one_read_again(make_runs, fill, store):
    pairs = make_runs(streams=["rotated"], methods=["sgd"])
    store = fill(store, pairs)
    path = store.folder(pairs[0][1].id) / "record.json"
    good = path.read_text()
    path.write_text("{")
    cache = RecordCache(store)
    assert len(look_at(cache, None, None).pairs) == 2
    path.write_text(good)
    assert len(look_at(cache, None, None).pairs) == 3


def test_labels_choose_runs(make_runs):
    pairs = make_runs()
    assert {s.method_label for s, _ in chosen(pairs, ["ogd*"])} == {"ogd", "ogd+"}
    assert {s.stream_label for s, _ in chosen(pairs, ["rotated/sgd"])} == {"rotated"}
    assert {s.seed for s, _ in chosen(pairs, [], [2])} == {2}
