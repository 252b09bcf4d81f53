//! Interpretation of call stacks: the user's lines, and the role of the library frames above them.

use memfit_recording::{Frame, StackId, TextId, Track};
use memfit_vocabulary::is_user_file;

/// Line of user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Site {
    /// File.
    pub file: TextId,
    /// Line number, from 1.
    pub line: u32,
    /// Function.
    pub function: TextId,
}

impl Site {
    /// Formats the line as `train.py:31`, with the recorded path.
    pub(crate) fn text(self, track: &Track) -> String {
        format!("{}:{}", track.texts.get(self.file), self.line)
    }
}

/// Context in PyTorch of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// Unknown.
    #[default]
    Unknown,
    /// User code outside of any module.
    Plain,
    /// Move of a module to the device, or its creation or copy there.
    Placing,
    /// Call of a module.
    Forward,
    /// Backward pass.
    Backward,
    /// Optimizer step.
    Optimizer,
}

/// Recognised operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent condition")]
pub(crate) struct Operation {
    /// Creation of optimizer state.
    pub(crate) state: bool,
    /// Step of one of PyTorch's own optimizers.
    pub(crate) torch_optimizer: bool,
    /// Workspace of a library handle.
    pub(crate) workspace: bool,
    /// CUDA graph capture.
    pub(crate) capture: bool,
    /// Classification loss.
    pub(crate) loss: bool,
    /// Precision under autocast, as far as library frames tell.
    pub(crate) cast: Cast,
    /// The operation saves its own result for the backward pass.
    pub(crate) saves_result: bool,
}

/// Precision of an operation under autocast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cast {
    /// That of its inputs, or an unknown one.
    #[default]
    Input,
    /// 16 bits: convolutions and matrix products.
    Half,
    /// 32 bits.
    Full,
}

impl Cast {
    /// Returns `true` if the operation works in 32 bits, where `input` is `true` if its inputs have these.
    pub(crate) const fn is_full(self, input: bool) -> bool {
        match self {
            Self::Input => input,
            Self::Half => false,
            Self::Full => true,
        }
    }
}

/// Interpretation of a stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// User frames, innermost first.
    pub(crate) user: Vec<Site>,
    /// User line that called the outermost module.
    pub(crate) caller: Option<Site>,
    pub(crate) role: Role,
    pub(crate) operation: Operation,
    /// `true` if the innermost user frame is a constructor.
    pub(crate) in_constructor: bool,
    /// `true` for the result of a function of PyTorch that computes, such as those of `torch.nn.functional`.
    pub(crate) computed: bool,
}

impl Origin {
    /// Innermost user line.
    pub(crate) fn site(&self) -> Option<Site> {
        self.user.first().copied()
    }
}

/// Interpretation of all stacks of a track.
#[derive(Debug)]
pub(crate) struct Origins(Vec<Origin>);

impl Origins {
    pub(crate) fn from_track(track: &Track) -> Self {
        let read = |id| read(track, track.stacks.get(StackId(id)));
        Self((0..track.stacks.len() as u32).map(read).collect())
    }

    pub(crate) fn get(&self, stack: StackId) -> &Origin {
        // The empty stack always exists.
        self.0.get(stack.0 as usize).unwrap_or(&self.0[0])
    }

    /// All interpretations.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Origin> {
        self.0.iter()
    }

    /// Returns `true` if any stack is known.
    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(|origin| !origin.user.is_empty())
    }
}

fn read(track: &Track, frames: impl Iterator<Item = Frame>) -> Origin {
    let mut origin = Origin::default();
    let mut seen_any = false;
    // `true` if the last library frame, from the inside, was a module's call.
    let mut in_module = false;
    for frame in frames {
        let (file, name) = (track.texts.get(frame.file), track.texts.get(frame.name));
        seen_any = true;
        if !is_user_file(file) {
            apply_frame(&mut origin, file, name);
            origin.computed |= origin.user.is_empty()
                && (file.ends_with("torch/nn/functional.py") || file.ends_with("torch/functional.py"));
            // Frames of callers, such as an attention module, say less than the operation's own.
            if origin.user.is_empty() && origin.operation.cast == Cast::Input {
                origin.operation.cast = cast(file, name);
            }
            in_module |= name == "_call_impl" && file.ends_with("module.py");
            continue;
        }
        let site = Site { file: frame.file, line: frame.line, function: frame.name };
        origin.in_constructor |= origin.user.is_empty() && name == "__init__";
        origin.user.push(site);
        if in_module {
            // Overwritten by outer frames, so that the outermost remains.
            origin.caller = Some(site);
            in_module = false;
        }
    }
    if seen_any && origin.role == Role::Unknown {
        origin.role = Role::Plain;
    }
    origin
}

/// Applies a library frame. The strongest role wins: a backward pass may call modules, an optimizer a
/// closure.
fn apply_frame(origin: &mut Origin, file: &str, name: &str) {
    let role = if name.contains("autograd::Engine") || name == "_engine_run_backward" || name == "_make_grads"
    {
        Role::Backward
    } else if file.contains("torch/optim/") || (file.contains("/optim") && name == "step") {
        Role::Optimizer
    } else if name == "_apply" && file.ends_with("module.py") {
        Role::Placing
    } else if name == "_call_impl" && file.ends_with("module.py") {
        Role::Forward
    } else if name == "__init__" && file.contains("torch/nn/modules/")
        || name == "__deepcopy__" && file.ends_with("torch/nn/parameter.py")
    {
        Role::Placing
    } else {
        Role::Unknown
    };
    if strength(role) > strength(origin.role) {
        origin.role = role;
    }
    let operation = &mut origin.operation;
    operation.state |= matches!(name, "_init_group" | "init_state" | "_init_state") && file.contains("optim");
    operation.torch_optimizer |= file.contains("torch/optim/") && !OPTIMIZER_WRAPPERS.contains(&base(file));
    operation.workspace |=
        name.contains("allocateCUDABlasWorkspace") || name.contains("getCurrentCUDABlasHandle");
    operation.capture |= file.ends_with("cuda/graphs.py");
    operation.loss |= matches!(name, "cross_entropy" | "nll_loss" | "log_softmax");
    operation.saves_result |= file.ends_with("nn/functional.py") && SAVE_RESULT.contains(&name);
}

/// Files of `torch/optim` through which the step of any optimizer runs.
const OPTIMIZER_WRAPPERS: &[&str] = &["optimizer.py", "lr_scheduler.py"];

/// Name of a file without its folders.
fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// Functions of `torch.nn.functional` that autocast runs in 32 bits.
const FULL_PRECISION: &[&str] = &[
    "group_norm",
    "layer_norm",
    "softmax",
    "softmin",
    "log_softmax",
    "softplus",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy_with_logits",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "triplet_margin_loss",
    "soft_margin_loss",
    "cosine_similarity",
    "normalize",
];

/// Functions of `torch.nn.functional` that save their result for the backward pass.
const SAVE_RESULT: &[&str] = &["relu", "softmax", "log_softmax", "sigmoid", "tanh"];

/// Precision that a library frame stands for under autocast.
fn cast(file: &str, name: &str) -> Cast {
    if file.ends_with("nn/functional.py") && FULL_PRECISION.contains(&name) {
        return Cast::Full;
    }
    let is_product = file.ends_with("nn/modules/linear.py") && name == "forward"
        || file.ends_with("nn/modules/conv.py") && matches!(name, "forward" | "_conv_forward")
        || file.ends_with("nn/functional.py") && name == "multi_head_attention_forward";
    if is_product { Cast::Half } else { Cast::Input }
}

const fn strength(role: Role) -> u8 {
    match role {
        Role::Unknown => 0,
        Role::Plain => 1,
        Role::Placing => 2,
        Role::Forward => 3,
        Role::Optimizer => 4,
        Role::Backward => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A track with one stack, innermost frame first.
    fn origin(frames: &[(&str, &str)]) -> Origin {
        let mut track = Track::default();
        let frames: Vec<_> = frames
            .iter()
            .enumerate()
            .map(|(line, (file, name))| {
                let frame = Frame {
                    file: track.texts.intern(file),
                    name: track.texts.intern(name),
                    line: line as u32,
                };
                track.stacks.intern_frame(frame)
            })
            .collect();
        let stack = track.stacks.intern(&frames);
        read(&track, track.stacks.get(stack))
    }

    const MODULE: (&str, &str) = ("/v/site-packages/torch/nn/modules/module.py", "_call_impl");

    #[test]
    fn the_users_frames_and_the_caller_of_the_outermost_module_are_found() {
        let origin = origin(&[
            ("/v/site-packages/torch/nn/modules/linear.py", "forward"),
            MODULE,
            ("/me/model.py", "forward"),
            MODULE,
            ("/me/train.py", "evaluate"),
            ("/me/train.py", "<module>"),
        ]);
        assert_eq!(origin.role, Role::Forward);
        assert_eq!(origin.user.iter().map(|site| site.line).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!(origin.caller.map(|site| site.line), Some(4));
    }

    #[test]
    fn the_strongest_role_wins() {
        let engine = ("/v/site-packages/torch/lib/libtorch_cpu.so", "torch::autograd::Engine::thread_main()");
        for (frames, role) in [
            (vec![("/me/train.py", "<module>")], Role::Plain),
            (vec![MODULE, engine], Role::Backward),
            (
                vec![("/v/site-packages/torch/optim/adam.py", "_multi_tensor_adam"), ("/me/train.py", "f")],
                Role::Optimizer,
            ),
            (
                vec![("/v/site-packages/torch/nn/modules/module.py", "_apply"), ("/me/train.py", "f")],
                Role::Placing,
            ),
            (
                vec![("/v/site-packages/torch/nn/parameter.py", "__deepcopy__"), ("/me/train.py", "f")],
                Role::Placing,
            ),
            (vec![("/v/site-packages/torch/_tensor.py", "__deepcopy__"), ("/me/train.py", "f")], Role::Plain),
            (vec![], Role::Unknown),
        ] {
            assert_eq!(origin(&frames).role, role, "{frames:?}");
        }
    }

    #[test]
    fn a_role_needs_the_file_and_the_function() {
        let torch = |file: &str| format!("/v/site-packages/torch/{file}");
        for (file, name, role) in [
            (torch("autograd/graph.py"), "_engine_run_backward", Role::Backward),
            (torch("autograd/__init__.py"), "_make_grads", Role::Backward),
            (torch("autograd/__init__.py"), "backward", Role::Plain),
            ("/v/site-packages/bnb/optim/adamw.py".to_owned(), "step", Role::Optimizer),
            ("/v/site-packages/bnb/optim/adamw.py".to_owned(), "other", Role::Plain),
            ("/v/site-packages/bnb/functional.py".to_owned(), "step", Role::Plain),
            (torch("nn/modules/module.py"), "_apply", Role::Placing),
            (torch("_dynamo/eval_frame.py"), "_apply", Role::Plain),
            (torch("nn/modules/linear.py"), "__init__", Role::Placing),
            (torch("nn/modules/linear.py"), "forward", Role::Plain),
            (torch("utils/data/dataset.py"), "__init__", Role::Plain),
            (torch("nn/parameter.py"), "__deepcopy__", Role::Placing),
            (torch("nn/parameter.py"), "__new__", Role::Plain),
            (torch("nn/modules/module.py"), "_call_impl", Role::Forward),
            (torch("fx/interpreter.py"), "_call_impl", Role::Plain),
        ] {
            assert_eq!(origin(&[(file.as_str(), name), ("/me/train.py", "f")]).role, role, "{file}, {name}");
        }
    }

    #[test]
    fn allocations_of_an_operation_are_found_by_their_frames() {
        let of = |file: &str, name: &str| {
            let found =
                origin(&[("/v/site-packages/torch/_tensor.py", "f"), (file, name), ("/me/train.py", "g")]);
            let operation = found.operation;
            (operation.state, operation.workspace, operation.capture, operation.loss)
        };
        for (file, name, expected) in [
            ("/v/site-packages/torch/optim/adam.py", "_init_group", (true, false, false, false)),
            ("/v/site-packages/bnb/optim/optimizer.py", "init_state", (true, false, false, false)),
            ("/v/site-packages/other/pool.py", "init_state", (false, false, false, false)),
            ("/v/site-packages/torch/optim/adam.py", "step", (false, false, false, false)),
            ("libtorch_cuda.so", "at::cuda::getCurrentCUDABlasHandle()", (false, true, false, false)),
            ("libtorch_cuda.so", "allocateCUDABlasWorkspace", (false, true, false, false)),
            ("/v/site-packages/torch/cuda/graphs.py", "capture_begin", (false, false, true, false)),
            ("/v/site-packages/torch/nn/functional.py", "cross_entropy", (false, false, false, true)),
            ("/v/site-packages/torch/nn/functional.py", "linear", (false, false, false, false)),
        ] {
            assert_eq!(of(file, name), expected, "{file}, {name}");
        }
    }
}
