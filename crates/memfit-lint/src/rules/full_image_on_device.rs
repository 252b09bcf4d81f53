//! # full-image-on-device
//!
//! ## What it does
//! Finds images that are copied to the GPU at full size and resized there.
//!
//! ## Why
//! The full-size image is copied and held needlessly. Measured on a photo of 4000 x 3000 in float32: a peak
//! of 139 MiB; resized to 224 x 224 before the copy, 588 KiB.
//!
//! ## Example
//! ```python
//! img = torchvision.io.read_image(path)
//! img = img.to("cuda")
//! img = torchvision.transforms.functional.resize(img, 224)
//! ```
//! Use instead:
//! ```python
//! img = torchvision.io.read_image(path)
//! img = torchvision.transforms.functional.resize(img, 224)
//! img = img.to("cuda")
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torchvision.transforms](https://docs.pytorch.org/vision/stable/transforms.html)

use memfit_source::{Flags, Kind, shrinks};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "full-image-on-device", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in &context.facts.calls {
        let shrinks = call.path.as_deref().is_some_and(|path| {
            path.starts_with("torchvision.")
                && ["resize", "resized_crop", "center_crop"].iter().any(|name| path.ends_with(name))
                || path == "torch.nn.functional.interpolate"
        }) || matches!(&call.target.kind, Kind::Imported(class) if shrinks(class));
        let image = call
            .arguments
            .first()
            .filter(|first| first.value.is(Flags::FULL_IMAGE) && first.value.device.is_gpu());
        if shrinks && image.is_some() {
            findings
                .report(call.span, "the image is copied to the GPU in full size before it is resized")
                .help("resize on the host, or decode at a smaller size, and move the result");
        }
    }
}
