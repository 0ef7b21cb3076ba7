"""How the processes of one server talk and share: link, board, hand-over of connections, placement."""
