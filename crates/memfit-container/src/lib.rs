//! memfit in a container, for systems on which PyTorch has no CUDA builds.
//!
//! Owns the choice of the engine, the folders that the container sees, and the engine's command line. A
//! folder keeps its path in the container, so that the paths in a report are the user's own. It does not know
//! what memfit's arguments mean, and prints nothing.
//!
//! [`Engine`] is found on the search path; [`Call`] is one command in a container, from the arguments and the
//! [`Host`] to the [command line](Call::command_line).

mod call;
mod engine;
mod error;
mod host;

pub use call::Call;
pub use engine::Engine;
pub use error::ContainerError;
pub use host::Host;

/// Environment variable that tells memfit that it is in a container already: settings of the project, which
/// it reads there, too, may ask for one.
pub const INSIDE: &str = "MEMFIT_IN_CONTAINER";

/// The image for a version of memfit, unless the user names another one.
pub fn default_image(version: &str) -> String {
    format!("memfit:{version}")
}
