"""Conversations side by side: the GPU works on the candidates of one while the model thinks about another."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from agent.converse.conversation import Conversation
from agent.strategies.studio import Studio

MOST_FRUITLESS = 3  # conversations in a row that end without an attempt
_OVER = ("author_done", "refused", "share")  # of one conversation, not of the run


def side_by_side(studio: Studio, begin: Callable[[], Conversation]) -> str:
    """Hold conversations, `width` at a time, until a limit is reached; returns why it ended. Raises LlmError, and
    KeyboardInterrupt at once: no other conversation asks again."""
    pool = ThreadPoolExecutor(studio.width, thread_name_prefix="conversation")
    try:
        return _keep_busy(studio, pool, begin)
    except KeyboardInterrupt:
        studio.halted.set()
        studio.model.close()  # wakes those that wait for a reply
        raise
    except BaseException:
        studio.halted.set()
        raise
    finally:
        pool.shutdown(wait=not studio.halted.is_set(), cancel_futures=True)


def _keep_busy(studio: Studio, pool: ThreadPoolExecutor, begin: Callable[[], Conversation]) -> str:
    held: dict[Future[str], Conversation] = {}
    fruitless, why = 0, None
    while True:
        while why is None and len(held) < min(studio.width, studio.room()):
            conversation = begin()
            held[pool.submit(conversation.hold)] = conversation
        if not held:
            return why or "attempts"
        ready, _ = wait(held, return_when=FIRST_COMPLETED)
        for future in ready:
            ended, conversation = future.result(), held.pop(future)
            fruitless = 0 if conversation.hands.made else fruitless + 1
            given_up = ended if fruitless >= MOST_FRUITLESS else None
            why = why or (None if ended in _OVER else ended) or given_up or studio.why_stop()
