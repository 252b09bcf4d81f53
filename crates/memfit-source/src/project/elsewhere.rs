//! Functions of other modules that a text calls.

use super::split;
use crate::facts::{Call, Facts, Kind};

/// Function, method or class of another module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Module as it is imported: `engine`, `.engine`.
    pub module: String,
    /// Qualified name in it: `train`, `Trainer.step`, `Trainer`.
    pub name: String,
}

impl Facts {
    /// Function, method or class of another module of the project that a call runs, as far as the text tells.
    pub fn called_elsewhere(&self, call: &Call) -> Option<Elsewhere> {
        if call.function.is_some() {
            return None;
        }
        let of_class = |class: &str, method: &str| {
            let (module, class) = split(class)?;
            Some(Elsewhere { module: module.to_owned(), name: format!("{class}.{method}") })
        };
        if let (Some(receiver), Some(method)) = (&call.receiver, &call.method) {
            let class = match &receiver.value.kind {
                Kind::Imported(class) => Some(&**class),
                Kind::Module => self.class_path(&receiver.value.weights),
                _ => None,
            };
            return of_class(class?, method);
        }
        match &call.target.kind {
            Kind::Imported(class) => return of_class(class, "__call__"),
            Kind::Module => return of_class(self.class_path(&call.target.weights)?, "forward"),
            _ => {}
        }
        let (module, name) = split(call.path.as_deref()?)?;
        let is_outside = ["torch", "builtins", "numpy"].contains(&module.split('.').next().unwrap_or(module));
        // `Trainer.build(…)`
        let owner = module.rsplit('.').next().unwrap_or(module);
        match is_outside {
            true => None,
            false if owner.starts_with(char::is_uppercase) => of_class(module, name),
            false => Some(Elsewhere { module: module.to_owned(), name: name.to_owned() }),
        }
    }
}
