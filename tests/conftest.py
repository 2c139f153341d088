"""What every test may count on."""

import signal


def pytest_configure() -> None:
    """Tests press Ctrl-C on processes that they start. A shell that started this one in the background, or nohup, has
    SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
