//! Results of functions and methods of torch and related libraries.

use crate::facts::{Criterion, DType, Device, Flags, Kind, Value};

/// Result of a call by full name.
pub(super) enum CallResult {
    /// A value of this kind, without a graph.
    Made(Kind, Flags),
    /// A new tensor; its device is an argument.
    Created,
    /// A tensor with the graphs of the arguments.
    Tensor(Flags),
    /// A loss.
    Loss,
    /// The first argument.
    Same(Flags),
    /// A number.
    Number,
    /// A loader.
    Loader,
    /// A scaler.
    Scaler,
}

const CREATORS: &[&str] = &[
    "zeros",
    "ones",
    "empty",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "arange",
    "linspace",
    "eye",
    "tensor",
    "as_tensor",
    "from_numpy",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "rand_like",
    "randn_like",
    "logspace",
    "normal",
    "bernoulli",
    "LongTensor",
    "FloatTensor",
    "Tensor",
];

const NUMBERS: &[&str] = &[
    "is_available",
    "device_count",
    "manual_seed",
    "seed",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "synchronize",
    "empty_cache",
    "set_device",
    "is_tensor",
    "save",
    "set_grad_enabled",
    "manual_seed_all",
    "reset_peak_memory_stats",
    "current_device",
    "get_device_name",
    "mem_get_info",
    "memory_summary",
    "set_float32_matmul_precision",
    "numel",
    "is_grad_enabled",
];

const LOSSES: &[&str] = &[
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "nll_loss",
    "kl_div",
    "binary_cross_entropy",
    "cosine_embedding_loss",
    "margin_ranking_loss",
    "triplet_margin_loss",
    "ctc_loss",
    "poisson_nll_loss",
    "hinge_embedding_loss",
    "multi_margin_loss",
    "soft_margin_loss",
    "gaussian_nll_loss",
];

/// Classes of optimizers in libraries other than PyTorch, and in projects that have their own.
const OPTIMIZERS: &[&str] = &[
    "Adam",
    "AdamW",
    "SGD",
    "RMSprop",
    "RAdam",
    "Adamax",
    "BertAdam",
    "OpenAIAdam",
    "FusedAdam",
    "FusedLAMB",
    "FusedSGD",
    "DeepSpeedCPUAdam",
    "Adam8bit",
    "AdamW8bit",
    "PagedAdamW8bit",
    "Adafactor",
    "AdaBelief",
    "Lamb",
    "LAMB",
    "LARS",
    "Lion",
    "Prodigy",
    "Ranger",
];

/// Looks up a function or class of the standard library or a framework.
pub(super) fn known_call(path: &str) -> Option<CallResult> {
    let last = path.rsplit('.').next().unwrap_or(path);
    if let Some(rest) = path.strip_prefix("torch.") {
        return Some(torch(rest, last));
    }
    if path.starts_with("torchvision.models.") {
        let plain =
            ["vit", "swin", "convnext", "maxvit", "alexnet"].iter().any(|name| last.starts_with(name));
        let normalised =
            !plain && (last.chars().next().is_some_and(char::is_lowercase)) && !last.starts_with("vgg");
        let flags = if normalised || last.ends_with("_bn") { Flags::BATCH_NORM } else { Flags::NONE };
        return Some(CallResult::Made(Kind::Module, flags));
    }
    if matches!(
        path,
        "torchvision.io.read_image" | "torchvision.io.decode_image" | "torchvision.io.decode_jpeg"
    ) {
        return Some(CallResult::Tensor(Flags::FULL_IMAGE));
    }
    if path.starts_with("torchvision.") && matches!(last, "to_tensor" | "pil_to_tensor" | "to_image") {
        return Some(CallResult::Tensor(Flags::FULL_IMAGE));
    }
    if path.starts_with("torchvision.") && matches!(last, "resize" | "resized_crop" | "center_crop" | "crop")
    {
        return Some(CallResult::Tensor(Flags::NONE));
    }
    // A transform that is called with an image.
    if path.starts_with("torchvision.transforms.") && last.chars().next().is_some_and(char::is_uppercase) {
        return Some(CallResult::Made(Kind::Imported(path.into()), Flags::NONE));
    }
    if path.ends_with(".from_pretrained") {
        let owner = path.rsplit('.').nth(1).unwrap_or_default();
        let kind = if owner.contains("Tokenizer") || owner.contains("Processor") {
            Kind::Tokenizer
        } else if owner.contains("Pipeline") {
            // Records no gradients, and yields images or texts.
            Kind::Imported(path.into())
        } else if owner.contains("Model") || owner.contains("For") || is_model_of_library(path, owner) {
            Kind::Module
        } else {
            return None;
        };
        return Some(CallResult::Made(kind, Flags::NONE));
    }
    Some(match path {
        "timm.create_model" => CallResult::Made(Kind::Module, Flags::NONE),
        "timm.utils.AverageMeter" | "timm.utils.metrics.AverageMeter" => {
            CallResult::Made(Kind::Imported(path.into()), Flags::NONE)
        }
        "copy.deepcopy" | "copy.copy" => CallResult::Same(Flags::NONE),
        // The model with adapters, or prepared for them.
        "peft.get_peft_model"
        | "peft.prepare_model_for_kbit_training"
        | "peft.prepare_model_for_int8_training" => CallResult::Same(Flags::NONE),
        "collections.deque" => CallResult::Made(Kind::Container { bounded: false }, Flags::NONE),
        "collections.defaultdict"
        | "builtins.list"
        | "builtins.dict"
        | "builtins.set"
        | "builtins.tuple"
        | "collections.OrderedDict"
        // Dictionaries with attributes.
        | "types.SimpleNamespace"
        | "argparse.Namespace"
        | "munch.Munch"
        | "munch.DefaultMunch"
        | "easydict.EasyDict"
        | "addict.Dict"
        | "box.Box" => CallResult::Made(Kind::Container { bounded: false }, Flags::NONE),
        "builtins.float"
        | "builtins.int"
        | "builtins.str"
        | "builtins.len"
        | "builtins.round"
        | "builtins.print"
        | "builtins.isinstance"
        | "builtins.bool"
        | "builtins.repr" => CallResult::Number,
        "builtins.range" | "builtins.zip" | "builtins.enumerate" | "builtins.open" | "builtins.super" => {
            return None;
        }
        "accelerate.Accelerator" | "lightning.Fabric" | "lightning_fabric.Fabric" => return None,
        _ if path.starts_with("numpy.") => CallResult::Number,
        _ if OPTIMIZERS.contains(&last) => CallResult::Made(Kind::Optimizer, Flags::NONE),
        _ => return None,
    })
}

/// Returns `true` for a class of diffusers or transformers that is no configuration, and prepares no inputs.
fn is_model_of_library(path: &str, owner: &str) -> bool {
    let of_library = path.starts_with("diffusers.") || path.starts_with("transformers.");
    let others = ["Config", "Scheduler", "Extractor", "Streamer", "Trainer"];
    of_library && owner.starts_with(char::is_uppercase) && !others.iter().any(|end| owner.ends_with(end))
}

fn torch(rest: &str, last: &str) -> CallResult {
    if let Some(name) = rest.strip_prefix("nn.functional.") {
        return match name {
            "cross_entropy" | "binary_cross_entropy_with_logits" => CallResult::Loss,
            "softmax" => CallResult::Tensor(Flags::SOFTMAX),
            "log_softmax" => CallResult::Tensor(Flags::LOG_SOFTMAX),
            "sigmoid" => CallResult::Tensor(Flags::SIGMOID),
            _ if LOSSES.contains(&name) => CallResult::Loss,
            _ => CallResult::Tensor(Flags::NONE),
        };
    }
    if let Some(name) = rest.strip_prefix("nn.") {
        return match name {
            "CrossEntropyLoss" => made_loss(Criterion::CrossEntropy),
            "BCEWithLogitsLoss" => made_loss(Criterion::BceWithLogits),
            "DataParallel" => CallResult::Same(Flags::NONE),
            "parallel.DistributedDataParallel" => CallResult::Same(Flags::DISTRIBUTED),
            "utils.clip_grad_norm_" | "utils.clip_grad_value_" => CallResult::Number,
            "Parameter" | "parameter.Parameter" => CallResult::Tensor(Flags::NONE),
            "utils.rnn.pack_padded_sequence" => CallResult::Same(Flags::NONE),
            _ if name.ends_with("Loss") => made_loss(Criterion::Other),
            _ if name.starts_with("BatchNorm") || name == "SyncBatchNorm" => {
                CallResult::Made(Kind::Module, Flags::BATCH_NORM)
            }
            "Softmax" => CallResult::Made(Kind::Module, Flags::SOFTMAX.union(Flags::PARAMETERLESS)),
            "LogSoftmax" => CallResult::Made(Kind::Module, Flags::LOG_SOFTMAX.union(Flags::PARAMETERLESS)),
            "Sigmoid" => CallResult::Made(Kind::Module, Flags::SIGMOID.union(Flags::PARAMETERLESS)),
            _ if is_parameterless(name) => CallResult::Made(Kind::Module, Flags::PARAMETERLESS),
            _ if last.chars().next().is_some_and(char::is_uppercase) => {
                CallResult::Made(Kind::Module, Flags::NONE)
            }
            _ if name.contains("init.") => CallResult::Number,
            _ => CallResult::Tensor(Flags::NONE),
        };
    }
    if rest.starts_with("optim.lr_scheduler.") {
        return CallResult::Made(Kind::Scheduler, Flags::NONE);
    }
    if let Some(name) = rest.strip_prefix("optim.") {
        let made = name.chars().next().is_some_and(char::is_uppercase) && !name.contains('.');
        return if made {
            CallResult::Made(Kind::Optimizer, Flags::NONE)
        } else {
            CallResult::Made(Kind::Unknown, Flags::NONE)
        };
    }
    match rest {
        "utils.data.DataLoader" => return CallResult::Loader,
        "cuda.amp.GradScaler" | "amp.GradScaler" | "amp.grad_scaler.GradScaler" => return CallResult::Scaler,
        "compile" => return CallResult::Same(Flags::NONE),
        "device" => return CallResult::Made(Kind::Device(Device::Named), Flags::NONE),
        "softmax" => return CallResult::Tensor(Flags::SOFTMAX),
        "log_softmax" => return CallResult::Tensor(Flags::LOG_SOFTMAX),
        "sigmoid" => return CallResult::Tensor(Flags::SIGMOID),
        "load" | "autograd.Variable" => return CallResult::Made(Kind::Unknown, Flags::NONE),
        _ => {}
    }
    if rest.starts_with("utils.")
        || rest.starts_with("distributed.")
        || rest.starts_with("backends.")
        || rest.starts_with("hub.")
        || rest.starts_with("jit.")
        || rest.starts_with("profiler")
    {
        return CallResult::Made(Kind::Unknown, Flags::NONE);
    }
    if CREATORS.contains(&last) {
        return CallResult::Created;
    }
    if NUMBERS.contains(&last) || rest.starts_with("cuda.") {
        return CallResult::Number;
    }
    CallResult::Tensor(Flags::NONE)
}

/// Returns `true` for the modules of `torch.nn` without parameters.
fn is_parameterless(name: &str) -> bool {
    let families =
        ["Dropout", "MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "Upsampl", "Softm"];
    let others = [
        "ReLU",
        "ReLU6",
        "LeakyReLU",
        "ELU",
        "SELU",
        "CELU",
        "GELU",
        "SiLU",
        "Mish",
        "Tanh",
        "Hardtanh",
        "Hardsigmoid",
        "Hardswish",
        "LogSigmoid",
        "Softplus",
        "Softsign",
        "Flatten",
        "Unflatten",
        "Identity",
        "CosineSimilarity",
        "PairwiseDistance",
        "PixelShuffle",
    ];
    families.iter().any(|family| name.starts_with(family)) || others.contains(&name)
}

fn made_loss(which: Criterion) -> CallResult {
    CallResult::Made(Kind::Criterion { which, sums: false }, Flags::NONE)
}

/// Result of a tensor method.
pub(super) enum Method {
    /// The tensor without its graph.
    Detach,
    /// A number or another object on the host.
    Host,
    /// The tensor on the host, with its graph.
    Cpu,
    /// The tensor on the GPU.
    Cuda,
    /// Moved or converted, depending on the arguments.
    To,
    /// Converted to another element type.
    Cast(DType),
    /// A copy with its own storage.
    Copy,
    /// A view that shares the storage.
    View,
    /// A quotient.
    Divide,
    /// A product.
    Multiply,
    /// A reduction to a scalar.
    Reduce { sums: bool },
    /// The tensor with flags.
    Marked(Flags),
    /// Anything else, with the tensor's graph.
    Plain,
}

pub(super) fn method(name: &str) -> Method {
    match name {
        "detach" | "detach_" => Method::Detach,
        "item" | "tolist" | "numpy" | "size" | "dim" | "numel" | "argmax" | "argmin" | "eq" | "ne" | "gt"
        | "lt" | "ge" | "le" | "nelement" | "backward" => Method::Host,
        "cpu" => Method::Cpu,
        "cuda" => Method::Cuda,
        "to" => Method::To,
        "half" => Method::Cast(DType::Half),
        "bfloat16" => Method::Cast(DType::BFloat16),
        "float" => Method::Cast(DType::Float),
        "double" | "long" | "int" | "bool" => Method::Cast(DType::Other),
        "clone" | "contiguous" => Method::Copy,
        "select" | "narrow" => Method::View,
        "div" | "div_" | "true_divide" => Method::Divide,
        "mul" | "mul_" => Method::Multiply,
        "mean" => Method::Reduce { sums: false },
        "sum" => Method::Reduce { sums: true },
        "softmax" => Method::Marked(Flags::SOFTMAX),
        "log_softmax" => Method::Marked(Flags::LOG_SOFTMAX),
        "sigmoid" => Method::Marked(Flags::SIGMOID),
        _ => Method::Plain,
    }
}

/// Returns `true` for functions and methods that compute a tensor of the same shape: of a scalar, a scalar.
pub(super) fn is_elementwise(name: &str) -> bool {
    matches!(
        name.trim_end_matches('_'),
        "exp"
            | "exp2"
            | "expm1"
            | "log"
            | "log2"
            | "log10"
            | "log1p"
            | "sqrt"
            | "rsqrt"
            | "square"
            | "pow"
            | "abs"
            | "absolute"
            | "neg"
            | "negative"
            | "reciprocal"
            | "clamp"
            | "clip"
            | "clamp_min"
            | "clamp_max"
            | "sigmoid"
            | "tanh"
            | "relu"
            | "add"
            | "sub"
            | "mul"
            | "div"
            | "true_divide"
            | "multiply"
            | "divide"
            | "subtract"
            | "round"
            | "nan_to_num"
            | "clone"
            | "contiguous"
            | "squeeze"
            | "logit"
            | "softplus"
    )
}

/// Device named by an argument.
pub(super) fn device_of(value: &Value) -> Device {
    match &value.kind {
        Kind::Device(device) => *device,
        Kind::Str(text) if text.starts_with("cuda") => Device::Cuda,
        Kind::Str(text) if &**text == "cpu" => Device::Cpu,
        // `world.device`, a setting of another module
        Kind::Path(path) => match crate::names::value_by_name(path).kind {
            Kind::Device(device) if path.contains('.') && !path.starts_with("torch.") => device,
            _ => Device::Unknown,
        },
        _ => Device::Unknown,
    }
}

/// Functions that take a container and keep no reference to its elements.
pub(super) fn is_harmless(name: &str) -> bool {
    matches!(
        name,
        "len"
            | "print"
            | "sum"
            | "max"
            | "min"
            | "mean"
            | "plot"
            | "enumerate"
            | "zip"
            | "float"
            | "str"
            | "list"
            | "sorted"
            | "tensor"
            | "isinstance"
            | "array"
            | "info"
            | "debug"
            | "savefig"
            | "std"
            | "median"
            | "average"
            | "format"
            | "item"
    )
}
