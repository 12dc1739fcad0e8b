import os
import socket

import pytest

from drivetrain.launch.ports import is_listening, listen, owner_of
from drivetrain.spec.errors import InputError


@pytest.mark.parametrize("loopback_only", [True, False])
def test_a_free_port_is_chosen_and_listened_on(loopback_only: bool) -> None:
    with listen(0, loopback_only=loopback_only) as listener:
        port = listener.getsockname()[1]
        assert is_listening(port)
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    assert not is_listening(port)


def test_a_taken_port_names_itself_and_its_owner() -> None:
    with listen(0, loopback_only=False) as listener:
        port = listener.getsockname()[1]
        assert (owner_of(port) or "").startswith(f"pid {os.getpid()} (")
        with pytest.raises(InputError) as caught:
            listen(port, loopback_only=False)
    assert caught.value.asked == f"master port {port}"
    assert f"pid {os.getpid()}" in caught.value.found
    assert "--master-port" in caught.value.do


def test_nobody_owns_a_free_port() -> None:
    with listen(0, loopback_only=True) as listener:
        port = listener.getsockname()[1]
    assert owner_of(port) is None
