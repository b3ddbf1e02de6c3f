# SPDX-License-Identifier: MIT
"""SizeAdder: records the batch sizes that traffic has often, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque

from .recording import Recording

logger = logging.getLogger("xpugraph")


class SizeAdder:
    """Adds a batch size to a recording once it was served `times` times without being recorded.

    The call that finds it goes on; a thread records, and ends when nothing is left to record. A size that fails is in
    ``recording.dropped`` with its reason and is not tried again.
    """

    def __init__(self, recording: Recording, times: int) -> None:
        self._recording = recording
        self._wanted: deque[int] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        recording.call.report_seen(times, recording.largest, self._seen)

    def close(self) -> None:
        """Waits for the size that is being recorded, and records no other."""
        with self._lock:
            self._closed = True
            self._wanted.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _seen(self, batch_size: int) -> None:
        """Told by a call, which must not fail for it nor wait."""
        with self._lock:
            if self._closed or batch_size in self._recording.dropped:
                return
            self._wanted.append(batch_size)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="xpugraph-record")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                size = self._wanted.popleft()
            try:
                self._recording.add(size)
                logger.info("batch size %d is recorded from now on", size)
            except Exception as error:  # noqa: BLE001  it is in recording.dropped
                logger.warning("batch size %d could not be recorded: %s", size, error)
