"""What of the script's data the run has covered: ends of epochs, evaluations, the largest batch."""


class Loaders:
    """The script's data loaders."""

    def __init__(self, session):
        self.session = session
        self.largest_batch = False
        self.epoch_end = False

    def arm(self):
        pass

    def evaluation_began(self):
        pass

    def has_more_to_cover(self):
        return False
