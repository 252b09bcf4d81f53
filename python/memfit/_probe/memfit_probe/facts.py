"""What a plan has to know of a training or of a model at work, beyond its batches and blocks: told once, at the end."""

import itertools

# Of a data set's items so many lengths are told.
MAX_LENGTHS = 1024


class Facts:
    """What was seen on the way."""

    def __init__(self, session):
        self.session = session
        # Numbers that a script put into its model: it goes on from weights that were trained before.
        self.loaded = 0

    def forget(self):
        """Nothing has happened yet; what was loaded before the fork stays so."""
        self.cached = 0
        self.tokens = 0
        self.pictures = (0, 0)

    def arm(self):
        module, facts = self.session.torch.nn.Module, self
        original = module.load_state_dict

        def load_state_dict(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            facts.loaded += sum(parameter.numel() for parameter in self.parameters())
            return result

        module.load_state_dict = load_state_dict

    def saw(self, arguments):
        """What an outermost module is called with: a language model's cache may be among it."""
        for value in itertools.islice(arguments[1].values() if arguments[1] else (), 32):
            layers = getattr(value, "layers", None)
            if isinstance(layers, list) and hasattr(value, "get_seq_length"):
                self.cached = max(self.cached, sum(nbytes(vars(layer)) for layer in layers))
                self.tokens = max(self.tokens, int(value.get_seq_length()))

    def batch(self, batch):
        """What a loader gave: pictures have four dimensions."""
        for value in leaves(batch, 16):
            if getattr(value, "ndim", 0) == 4 and value.shape[1] <= 4:
                self.pictures = max(
                    self.pictures, tuple(value.shape[-2:]), key=lambda sides: sides[0] * sides[1]
                )

    def tell(self, model):
        """As fields of the message."""
        torch = self.session.torch
        parameters = list(model.parameters()) if model is not None else []
        named = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
        numbers = sum(parameter.numel() for parameter in parameters)
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        return {
            "parameters": sum(parameter.nbytes for parameter in parameters),
            "linears": sum(
                each.weight.nbytes
                for each in (model.modules() if model is not None else ())
                if type(each) is torch.nn.Linear
            ),
            "pretrained": bool(named) or 2 * self.loaded > numbers > 0,
            "cached": self.cached,
            "tokens": self.tokens,
            "pictures": list(self.pictures),
            "processes": torch.distributed.get_world_size() if several else 1,
        }


def nbytes(table):
    """Bytes of the tensors in an object's own fields."""
    fields = [each for value in table.values() for each in (value if isinstance(value, list) else [value])]
    return sum(getattr(each, "nbytes", 0) or 0 for each in fields)


def lengths(sizes):
    """Sizes of items, as many as tell how they differ; nothing where they are alike."""
    if len(set(sizes.values())) < 2:
        return []
    return list(itertools.islice(sizes.values(), MAX_LENGTHS))


def output_bytes(output):
    """Bytes of a block's output."""
    return sum(getattr(value, "nbytes", 0) or 0 for value in leaves(output, 64))


def leaves(value, most):
    """What tuples, lists and dictionaries hold at their ends, so many values being looked at."""
    waiting = [value]
    for _ in itertools.repeat(None, most):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, (tuple, list)):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        else:
            yield value
