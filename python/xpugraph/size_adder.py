# SPDX-License-Identifier: MIT
"""SizeAdder: records the batch sizes that traffic has often, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque

from .recording import Recording

logger = logging.getLogger("xpugraph")


class SizeAdder:
    """Adds a batch size to a recording once it was served `times` times without being recorded.

    The call that finds it goes on; a thread records, and ends when nothing is left to record, or once the main thread
    has ended. A size that fails is in ``recording.dropped`` with its reason and is not tried again.
    """

    def __init__(self, recording: Recording, times: int) -> None:
        self._recording = recording
        self._wanted: deque[int] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        seen = weakref.WeakMethod(self._seen)  # the recording's own callback must not keep the recording alive

        def on_seen(batch_size: int) -> None:
            if (method := seen()) is not None:
                method(batch_size)

        recording.call.report_seen(times, recording.largest, on_seen)

    def stop(self) -> None:
        """Records nothing after the size that is being recorded."""
        with self._lock:
            self._closed = True
            self._wanted.clear()

    def close(self) -> None:
        """The same, and waits for that size."""
        self.stop()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _seen(self, batch_size: int) -> None:
        """Told by a call, which must not fail for it nor wait."""
        with self._lock:
            known = batch_size in self._recording.dropped or batch_size in self._recording.call.sizes
            if self._closed or known:
                return
            self._wanted.append(batch_size)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="xpugraph-record")
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left; the next size tries again
                logger.warning("batch size %d is not recorded: %s", batch_size, error)
                return
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or not threading.main_thread().is_alive():
                    self._thread = None
                    return
                size = self._wanted.popleft()
            try:
                self._recording.add(size)
                logger.info("batch size %d is recorded from now on", size)
            except BaseException as error:  # noqa: BLE001  it is in recording.dropped; this thread is nobody's
                self._recording.dropped.setdefault(size, f"{type(error).__name__}: {error}")
                logger.warning("batch size %d could not be recorded: %s", size, error)
