//! Training with several optimizers: detection of which of them accumulates gradients.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;

use memfit_lint::{Config, check_source};

/// Rules about accumulation windows.
const RULES: &[&str] = &[
    "batch-norm-under-accumulation",
    "no-sync-missing",
    "partial-window-dropped",
    "scheduler-per-micro-batch",
    "stale-window-index",
    "unscaled-accumulation",
    "window-off-by-one",
    "zero-grad-inside-window",
];

const GIVEN: &str = "\
import itertools
import torch
from torch import nn

class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, z):
        return self.norm(z)

class Critic(nn.Module):
    def forward(self, x):
        return x.mean(1)

G = Generator()
D = Critic()
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
k = 4
";

fn found(text: &str) -> Vec<(u32, String)> {
    let config =
        Config { select: RULES.iter().map(|rule| (*rule).to_owned()).collect(), ..Config::default() };
    let text = format!("{GIVEN}{text}");
    let source = check_source(Path::new("train.py"), &text, &config).unwrap();
    assert!(source.problems.is_empty(), "{:?}", source.problems);
    let first = GIVEN.lines().count() as u32;
    source.findings.iter().map(|finding| (finding.start.line - first, finding.rule.to_owned())).collect()
}

/// Training loops without accumulation: each optimizer steps after its own backward pass.
const ALTERNATING: &[(&str, &str)] = &[
    (
        "a critic that is trained more often",
        "\
for i, x in enumerate(loader):
    opt_d.zero_grad()
    loss_d = D(G(x).detach()).mean() - D(x).mean()
    loss_d.backward()
    opt_d.step()
    if i % k == 0:
        opt_g.zero_grad()
        loss_g = -D(G(x)).mean()
        loss_g.backward()
        opt_g.step()
",
    ),
    (
        "the generator is not cut off, and its gradients are cleared before its turn",
        "\
for i, x in enumerate(loader):
    opt_d.zero_grad()
    loss_d = D(G(x)).mean() - D(x).mean()
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    if i % k == 0:
        loss_g = -D(G(x)).mean()
        loss_g.backward()
        opt_g.step()
",
    ),
    (
        "one pass through both, and the generator's turn first",
        "\
for i, x in enumerate(loader):
    G.zero_grad()
    D.zero_grad()
    opt_g.zero_grad()
    score = D(G(x))
    if i % k == 0:
        (-score.mean()).backward(retain_graph=True)
        opt_g.step()
    opt_d.zero_grad()
    (score.mean() - D(x).mean()).backward()
    opt_d.step()
",
    ),
    (
        "models and optimizers that are only known by their names",
        "\
def train(critic, actor, critic_optimizer, actor_optimizer, batches, policy_freq):
    for step, batch in enumerate(batches):
        loss = critic(batch).mean()
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if step % policy_freq == 0:
            actor_optimizer.zero_grad()
            (-critic(actor(batch)).mean()).backward()
            actor_optimizer.step()
",
    ),
    (
        "in methods, with a count of its own",
        "\
class Agent:
    def __init__(self, make):
        self.actor = make()
        self.critic = make()
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters())
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters())
        self.total = 0

    def train(self, replay):
        self.total += 1
        state = replay.sample()
        loss = nn.functional.mse_loss(self.critic(state), state)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        if self.total % k == 0:
            loss = -self.critic(self.actor(state)).mean()
            self.actor_optimizer.zero_grad()
            loss.backward()
            self.actor_optimizer.step()
",
    ),
    (
        "optimizers that a function makes",
        "\
def optimizers(generator, critic):
    return torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())

first, second = optimizers(G, D)
first_opt, second_opt = first, second
for i, x in enumerate(loader):
    second_opt.zero_grad()
    D(G(x).detach()).mean().backward()
    second_opt.step()
    if i % k == 0:
        first_opt.zero_grad()
        (-D(G(x)).mean()).backward()
        first_opt.step()
",
    ),
    (
        "a penalty now and then, of the same optimizer",
        "\
for i, x in enumerate(loader):
    D.zero_grad()
    D(x).mean().backward()
    opt_d.step()
    if i % k == 0:
        D.zero_grad()
        (D(x) ** 2).mean().backward()
        opt_d.step()
",
    ),
    (
        "through a scaler",
        "\
scaler = torch.amp.GradScaler()
for i, x in enumerate(loader):
    opt_d.zero_grad()
    scaler.scale(D(G(x).detach()).mean()).backward()
    scaler.step(opt_d)
    if (i + 1) % k == 0:
        opt_g.zero_grad()
        scaler.scale(-D(G(x)).mean()).backward()
        scaler.step(opt_g)
    scaler.update()
",
    ),
    (
        "the other optimizer's backward pass goes through what this one does not hold",
        "\
for i, x in enumerate(loader):
    opt_d.zero_grad()
    D(x).mean().backward()
    opt_d.step()
    if (i + 1) % k == 0:
        opt_g.step()
",
    ),
];

#[test]
fn optimizers_that_take_turns_accumulate_nothing() {
    for (what, text) in ALTERNATING {
        assert_eq!(found(text), [], "{what}\n{text}");
    }
}

/// Lines with the rules that report them.
type Expected = &'static [(u32, &'static str)];

/// Training loops with several optimizers of which one accumulates, and the expected findings.
const ACCUMULATING: &[(&str, &str, Expected)] = &[
    (
        "the generator's backward pass runs in each round",
        "\
for i, x in enumerate(loader):
    opt_d.zero_grad()
    D(G(x).detach()).mean().backward()
    opt_d.step()
    loss_g = -D(G(x)).mean()
    loss_g.backward()
    if (i + 1) % k == 0 or i + 1 == len(loader):
        opt_g.step()
        opt_g.zero_grad()
",
        &[(6, "unscaled-accumulation"), (7, "batch-norm-under-accumulation")],
    ),
    (
        "both step at the end of a window",
        "\
for i, x in enumerate(loader):
    opt_d.zero_grad()
    loss = D(G(x)).mean() / k
    loss.backward()
    if (i + 1) % k == 0 or i + 1 == len(loader):
        opt_g.step()
        opt_d.step()
        opt_g.zero_grad()
",
        &[(2, "zero-grad-inside-window"), (5, "batch-norm-under-accumulation")],
    ),
    (
        "a part of a model in a group of a list",
        "\
head = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
parts = [{'params': head.parameters(), 'lr': 1e-3}]
parts.append({'params': D.parameters()})
opt_h = torch.optim.AdamW(parts)
for i, x in enumerate(loader):
    opt_g.zero_grad()
    G(x).mean().backward()
    opt_g.step()
    loss = head(x).mean()
    loss.backward()
    if (i + 1) % k == 0 or i + 1 == len(loader):
        opt_h.step()
        opt_h.zero_grad()
",
        &[(10, "unscaled-accumulation")],
    ),
    (
        "a chain of two models, synchronised at the end of a window only",
        "\
both = torch.optim.SGD(itertools.chain(G.parameters(), D.parameters()), 0.1)
for i, x in enumerate(loader):
    loss = D(G(x)).mean()
    if (i + 1) % k == 0 or i + 1 == len(loader):
        loss.backward()
        both.step()
        both.zero_grad()
    else:
        loss.backward()
",
        &[(4, "batch-norm-under-accumulation"), (9, "unscaled-accumulation")],
    ),
];

#[test]
fn accumulation_of_one_among_several_optimizers_is_found() {
    for (what, text, expected) in ACCUMULATING {
        let expected: Vec<(u32, String)> =
            expected.iter().map(|(line, rule)| (*line, (*rule).to_owned())).collect();
        assert_eq!(found(text), expected, "{what}\n{text}");
    }
}
