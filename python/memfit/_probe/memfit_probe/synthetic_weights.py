"""Replaces weights that are missing, or larger than the host's memory: shapes are exact, contents never
exist.

A model of transformers gets its shapes from its configuration; its checkpoint is a sparse file, which the
library loads like any other: unwritten parts take no space, and a virtual device does not read them. A
missing checkpoint file is replaced by an object that fits whatever loads it.
"""

import copy
import json
import os
import struct
import zipfile

from . import channel, fetched, flows, imports, network, opened
from .missing_weights import Missing, accepting, completing
from .oom import frames_here
from .wrapping import alike

FOLDER = "synthetic"
# PyTorch's data types, as checkpoints spell them.
CHECKPOINT_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
# Classes of torchtune that read the weights of a whole model.
TORCHTUNE_CHECKPOINTERS = (
    "FullModelHFCheckpointer",
    "FullModelMetaCheckpointer",
    "FullModelTorchTuneCheckpointer",
)
NEEDS_CONFIGURATION = (
    "memfit: `--synthetic-weights` takes the shapes of {name!r} from its configuration, which is not on this "
    "machine ({error}). Put the model's `config.json` (a few KiB) into a folder and pass that folder, or "
    "pass `config=` with a configuration made here, as in `LlamaConfig()`."
)


class SyntheticWeights:
    """Replaces checkpoints."""

    def __init__(self, session):
        self.session = session
        self.made = 0
        # Places at which the script loads what was replaced.
        self.sites = set()

    def arm(self):
        torch = self.session.torch
        self._arm_torch(torch)
        fetched.arm(self._note)
        opened.arm()
        imports.after("torch.hub", self._arm_hub)
        imports.after("safetensors.torch", self._arm_safetensors)
        imports.after("transformers.modeling_utils", self._arm_transformers)
        imports.after("transformers.models.auto.configuration_auto", arm_configurations)
        imports.after("timm.models._builder", self._arm_timm)
        imports.after("segmentation_models_pytorch.encoders", self._arm_encoders)
        imports.after("diffusers.models.modeling_utils", self._arm_diffusers)
        imports.after("torchtune.training.checkpointing._utils", arm_torchtune_paths)
        imports.after("torchtune.training.checkpointing._checkpointer", self._arm_torchtune)
        return self

    def may_reach(self, exception):
        """Return `False` if no weights that were replaced can have reached the statement that failed."""
        return bool(self.sites) and flows.may_reach(self.sites, exception.__traceback__)

    def _note(self, what):
        network.forget()
        self.sites.add(flows.site(frames_here()))
        self.session.remark("synthetic-weights", what=what)

    # Checkpoints of PyTorch

    def _arm_torch(self, torch):
        load, note = torch.load, self._note

        @alike(load)
        def load_or_stand_in(f, *args, **kwargs):
            if isinstance(f, opened.MissingFile):
                f = f.name
            if isinstance(f, (str, os.PathLike)):
                if not os.path.exists(f):
                    note(f"`{os.fspath(f)}` does not exist: what loads it keeps its own values")
                    return Missing(os.fspath(f))
                if os.path.isfile(f) and not os.path.getsize(f):
                    note(f"`{os.fspath(f)}` is empty: what loads it keeps its own values")
                    return Missing(os.fspath(f))
                if kwargs.get("mmap") is None and zipfile.is_zipfile(f):
                    # The file's pages are only read on access, and a virtual device reads none.
                    kwargs["mmap"] = True
            return load(f, *args, **kwargs)

        torch.load = torch.serialization.load = load_or_stand_in
        torch.nn.Module.load_state_dict = completing(torch.nn.Module.load_state_dict)
        for kind in (torch.nn.Module, torch.optim.Optimizer):
            kind.load_state_dict = accepting(kind.load_state_dict)
        scheduler = torch.optim.lr_scheduler.LRScheduler
        scheduler.load_state_dict = accepting(scheduler.load_state_dict)
        for scaler in {torch.amp.GradScaler, torch.cuda.amp.GradScaler}:
            scaler.load_state_dict = accepting(scaler.load_state_dict)

    def _arm_hub(self, hub):
        original, note = hub.load_state_dict_from_url, self._note

        @alike(original)
        def from_url(url, *args, **kwargs):
            note(f"`{url}` was not downloaded: the model keeps its initial weights")
            return Missing(url)

        hub.load_state_dict_from_url = from_url
        # torchvision has its own reference.
        imports.after("torchvision._internally_replaced_utils", lambda module: replace(module, from_url))
        imports.after("torchvision.models._api", lambda module: replace(module, from_url))

    def _arm_safetensors(self, module):
        original, note = module.load_file, self._note

        @alike(original)
        def load_file(filename, *args, **kwargs):
            if os.path.exists(filename):
                return original(filename, *args, **kwargs)
            note(f"`{os.fspath(filename)}` does not exist: what loads it keeps its own values")
            return Missing(os.fspath(filename))

        module.load_file = load_file

    def _arm_timm(self, module):
        original, note = getattr(module, "load_pretrained", None), self._note
        if original is not None:

            @alike(original)
            def load_pretrained(model, *args, **kwargs):
                note("a pretrained model of timm keeps its initial weights")

            module.load_pretrained = load_pretrained

    # segmentation_models_pytorch

    def _arm_encoders(self, module):
        original, note = getattr(module, "get_encoder", None), self._note
        if original is None:
            return

        @alike(original)
        def get_encoder(name, in_channels=3, depth=5, weights=None, *args, **kwargs):
            try:
                return original(name, in_channels, depth, weights, *args, **kwargs)
            except (OSError, RuntimeError) as error:
                if weights is None or not (isinstance(error, OSError) or fetched.is_unreached(error)):
                    raise
                note(f"the weights `{weights}` of the encoder `{name}` were not downloaded: it keeps its own")
                return original(name, in_channels, depth, None, *args, **kwargs)

        module.get_encoder = get_encoder

    # torchtune

    def _arm_torchtune(self, module):
        note = self._note

        def wrap(original):
            @alike(original)
            def load_checkpoint(checkpointer, *args, **kwargs):
                paths = [os.fspath(path) for path in getattr(checkpointer, "_checkpoint_paths", ())]
                missing = next((path for path in paths if not os.path.exists(path)), None)
                if missing is None:
                    return original(checkpointer, *args, **kwargs)
                note(f"`{missing}` does not exist: what loads it keeps its own values")
                # A recipe starts with the weights alone; the rest is of a training run that is resumed.
                return {"model": Missing(missing)}

            return load_checkpoint

        for name in TORCHTUNE_CHECKPOINTERS:
            kind = getattr(module, name, None)
            if kind is not None:
                kind.load_checkpoint = wrap(kind.load_checkpoint)

    # transformers

    def _arm_transformers(self, module):
        kind = module.PreTrainedModel
        original, weights = kind.from_pretrained.__func__, self

        @alike(original)
        def from_pretrained(cls, name, *args, config=None, **kwargs):
            if name is None or kwargs.get("state_dict") is not None:
                return original(cls, name, *args, config=config, **kwargs)
            config = weights._configuration(cls, name, config, kwargs)
            folder = weights._checkpoint(cls, config, kwargs)
            weights._note(f"`{name}` takes its shapes from its configuration, and nothing of it is read")
            for gone in ("revision", "subfolder", "variant", "use_safetensors", "from_tf", "from_flax"):
                kwargs.pop(gone, None)
            made = original(cls, folder, *args, config=config, **kwargs)
            # With `output_loading_info=True` the result is a pair.
            restore_name(made[0] if isinstance(made, tuple) else made, folder, name)
            return made

        kind.from_pretrained = classmethod(from_pretrained)

    def _configuration(self, cls, name, config, kwargs):
        if config is not None and not isinstance(config, (str, os.PathLike)):
            return config
        source = name if config is None else config
        options = {key: kwargs[key] for key in ("revision", "subfolder", "token") if key in kwargs}
        if cls.config_class is None:
            raise OSError(NEEDS_CONFIGURATION.format(name=name, error="its class has no configuration class"))
        try:
            return cls.config_class.from_pretrained(source, local_files_only=True, **options)
        except Exception as error:
            raise missing_configuration(name, error) from error

    def _checkpoint(self, cls, config, kwargs):
        """Create a folder with the configuration and a sparse file of the model's weights."""
        torch = self.session.torch
        wanted = kwargs.get("dtype", kwargs.get("torch_dtype"))
        stored = wanted if isinstance(wanted, torch.dtype) else getattr(config, "dtype", None)
        if isinstance(stored, str):
            stored = getattr(torch, stored, None)
        plain = copy.deepcopy(config)
        # The weights before quantisation: a quantizer creates its own from them.
        if kwargs.get("quantization_config") is None and hasattr(plain, "quantization_config"):
            del plain.quantization_config
        with torch.device("meta"):
            model = cls._from_config(plain, dtype=stored or torch.float32)
        folder = self._folder()
        config.save_pretrained(folder)
        write_sparse(os.path.join(folder, "model.safetensors"), shapes(model), torch)
        return folder

    def _folder(self):
        self.made += 1
        folder = os.path.join(channel.run_dir(), FOLDER, f"{os.getpid()}-{self.made}")
        os.makedirs(folder)
        return folder

    # diffusers

    def _arm_diffusers(self, module):
        kind = module.ModelMixin
        original, weights = kind.from_pretrained.__func__, self

        @alike(original)
        def from_pretrained(cls, name, *args, **kwargs):
            folder = weights._diffusers_checkpoint(cls, name, kwargs)
            weights._note(f"`{name}` takes its shapes from its configuration, and nothing of it is read")
            for gone in ("revision", "subfolder", "variant", "use_safetensors", "from_flax"):
                kwargs.pop(gone, None)
            made = original(cls, folder, *args, **kwargs)
            model = made[0] if isinstance(made, tuple) else made
            model.register_to_config(_name_or_path=os.fspath(name))
            return made

        kind.from_pretrained = classmethod(from_pretrained)

    def _diffusers_checkpoint(self, cls, name, kwargs):
        """Create a folder with a model's configuration and a sparse file of its weights."""
        torch = self.session.torch
        options = {
            key: kwargs[key] for key in ("revision", "subfolder", "token", "cache_dir") if key in kwargs
        }
        try:
            config = cls.load_config(name, local_files_only=True, **options)
        except Exception as error:
            raise missing_configuration(name, error) from error
        wanted = kwargs.get("torch_dtype", kwargs.get("dtype"))
        with torch.device("meta"):
            model = cls.from_config(config)
        if isinstance(wanted, torch.dtype):
            model = model.to(wanted)
        folder = self._folder()
        model.save_config(folder)
        write_sparse(os.path.join(folder, "diffusion_pytorch_model.safetensors"), shapes(model), torch)
        return folder


def shapes(model):
    """Return the type and shape of each tensor in a model's checkpoint."""
    tensors, seen = {}, set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        # Tied weights are stored once.
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return tensors


def restore_name(model, folder, name):
    """Restore the script's name of a model, under which its tokenizer is looked up."""
    name = os.fspath(name)
    for module in model.modules():
        if getattr(module, "name_or_path", None) == folder:
            module.name_or_path = name
        config = getattr(module, "config", None)
        if getattr(config, "_name_or_path", None) == folder:
            config._name_or_path = name


def arm_torchtune_paths(module):
    """Let torchtune's checkpointers name files that are not here; they check that when they are made."""
    original = module.get_path

    @alike(original)
    def get_path(input_dir, filename, missing_ok=False):
        return original(input_dir, filename, missing_ok=True)

    module.get_path = get_path


def arm_configurations(module):
    """Catch models that load their configuration before anything else."""
    kind = module.AutoConfig
    original = kind.from_pretrained.__func__

    @alike(original)
    def from_pretrained(cls, name, *args, **kwargs):
        try:
            return original(cls, name, *args, **kwargs)
        except OSError as error:
            raise missing_configuration(name, error) from error

    kind.from_pretrained = classmethod(from_pretrained)


def missing_configuration(name, error):
    why = f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
    return OSError(NEEDS_CONFIGURATION.format(name=name, error=why))


def replace(module, function):
    if hasattr(module, "load_state_dict_from_url"):
        module.load_state_dict_from_url = function


def write_sparse(path, tensors, torch):
    """Write a safetensors file with the headers of these tensors but no data."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        size = getattr(torch, dtype).itemsize
        for extent in shape:
            size *= extent
        header[name] = {
            "dtype": CHECKPOINT_TYPES[dtype],
            "shape": list(shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
