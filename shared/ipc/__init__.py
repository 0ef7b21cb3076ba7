"""Communication between the processes of one server: link, board, hand-over, placement."""
