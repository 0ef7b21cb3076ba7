"""What requests to an object store and stored bytes cost at list prices.

Stores bill by request and by stored byte, so a design that polls costs money while nothing happens. The table
has the list prices of the vendors' cheapest common regions, standard class, on the date below; discounts,
traffic and other classes are not in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PRICES_DATE: Final = "2026-10-31"


class Prices(NamedTuple):
    """US dollars."""

    write_1000: float
    """A thousand PUT or LIST requests."""
    read_1000: float
    """A thousand GET or HEAD requests."""
    gib_month: float

    def requests(self, writes: int, reads: int) -> float:
        """Return the price of requests; deletes are free everywhere."""
        return (writes * self.write_1000 + reads * self.read_1000) / 1000


PRICES: Final = {
    "s3": Prices(0.005, 0.0004, 0.023),
    "gs": Prices(0.005, 0.0004, 0.020),
    "az": Prices(0.0065, 0.0005, 0.0208),
    "file": Prices(0.0, 0.0, 0.0),
}
"""By the scheme of the URL."""
