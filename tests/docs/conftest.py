"""One reader for all documents, so that a run that two documents speak of is made once."""

import pytest

from tests.docs.documents import documents
from tests.docs.stranger import Stranger


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """A reader whose machine has no GPU."""
    return Stranger(tmp_path_factory.mktemp("docs") / "home", documents(), gpu=False)


@pytest.fixture(scope="session")
def stranger_with_gpu(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """A reader whose machine has one: blocks that need it are run, too."""
    return Stranger(tmp_path_factory.mktemp("docs-gpu") / "home", documents(), gpu=True)
