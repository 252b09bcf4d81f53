//! Questions that facts answer.

use super::{
    Call, Class, ClassId, Facts, Function, FunctionId, Guard, GuardId, Handler, HandlerId, LoaderId, Loop,
    LoopId, Op, OpKind, Over, Place, ScalerId,
};
use crate::position::Span;

impl Facts {
    /// The text of a span.
    pub fn slice(&self, span: Span) -> &str {
        span.of(&self.text)
    }

    /// A function.
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.index()]
    }

    /// A class.
    pub fn class(&self, id: ClassId) -> &Class {
        &self.classes[id.index()]
    }

    /// A loop.
    pub fn looped(&self, id: LoopId) -> &Loop {
        &self.loops[id.index()]
    }

    /// A branch.
    pub fn guard(&self, id: GuardId) -> &Guard {
        &self.guards[id.index()]
    }

    /// An `except`.
    pub fn handler(&self, id: HandlerId) -> &Handler {
        &self.handlers[id.index()]
    }

    /// The call that made a loader.
    pub fn loader(&self, id: LoaderId) -> Option<&Call> {
        self.loaders.get(id.index()).and_then(|call| self.calls.get(*call))
    }

    /// The call that made a scaler.
    pub fn scaler(&self, id: ScalerId) -> Option<&Call> {
        self.scalers.get(id.index()).and_then(|call| self.calls.get(*call))
    }

    /// A loop and those around it, from the inside.
    pub fn enclosing(&self, from: Option<LoopId>) -> impl Iterator<Item = LoopId> + '_ {
        std::iter::successors(from, |id| self.looped(*id).parent)
    }

    /// Whether a place is in a loop, at any depth.
    pub fn within(&self, place: &Place, looped: LoopId) -> bool {
        self.enclosing(place.looped).any(|id| id == looped)
    }

    /// A branch and those around it, from the inside.
    pub fn guards_of(&self, from: Option<GuardId>) -> impl Iterator<Item = GuardId> + '_ {
        std::iter::successors(from, |id| self.guard(*id).parent)
    }

    /// The operations in a loop, at any depth.
    pub fn ops_in(&self, looped: LoopId) -> impl Iterator<Item = &Op> + '_ {
        self.ops.iter().filter(move |op| self.within(&op.place, looped))
    }

    /// Whether a loop trains: a backward pass is in it.
    pub fn trains(&self, looped: LoopId) -> bool {
        self.ops_in(looped).any(|op| matches!(op.kind, OpKind::Backward(_)))
    }

    /// Whether any loop or call hands the batches of a loader to this loop.
    pub fn over_batches(&self, looped: LoopId) -> bool {
        matches!(self.looped(looped).over, Over::Loader(_))
    }
}
