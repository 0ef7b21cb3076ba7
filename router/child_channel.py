"""The way into the process of one slot, over all the lives of that process.

W1  The front process keeps both ends. What a process had not received when it died, or does not receive
    because it hangs, is taken back and answered, not reset.
W4  One channel for all lives: who has the sending end, as the acceptors do, need not hear of a new life.

Must not know: who is at the other end.
"""

from __future__ import annotations

from shared.handoff import ChannelClosed, Handed, channel_pair, receive_connections, send_drain


class ChildChannel:
    def __init__(self) -> None:
        self.sender, self.receiver = channel_pair()

    def send_drain(self) -> bool:
        """The word to end, behind all that was sent; False when there is no room now."""
        return send_drain(self.sender)

    def take_back(self) -> list[Handed]:
        """What was handed over and not received; also a word to drain that was not."""
        taken: list[Handed] = []
        while True:
            try:
                more = receive_connections(self.receiver)
            except ChannelClosed:
                raise AssertionError("the sending end is ours and open") from None
            if not more:
                return taken
            taken += more

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
