//! What callers in other files tell of a function: loops around it, gradients, and what it is given.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use support::files_with_finding;

/// Files with a finding in a project of a module and a script that uses it.
fn found(rule: &str, module: &str, script: &str) -> Vec<String> {
    files_with_finding(rule, &[("setup.py", ""), ("steps.py", module), ("train.py", script)])
}

const AGENT: &str = "\
import torch

class Agent:
    def __init__(self):
        self.actor = torch.nn.Linear(4, 2)

    def act(self, state):
        scores = self.actor(state)
        return scores.argmax().item()
";

#[test]
fn a_loop_of_another_file_runs_a_method() {
    let script = |body: &str| format!("import torch\nfrom steps import Agent\nagent = Agent()\n{body}");
    let table = [
        ("while not done:\n    action = agent.act(state)\n", true),
        ("def play(agent):\n    return agent.act(state)\nwhile not done:\n    play(Agent())\n", true),
        ("action = agent.act(state)\n", false),
        ("with torch.no_grad():\n    while not done:\n        action = agent.act(state)\n", false),
    ];
    for (body, is_found) in table {
        let files = found("eval-without-no-grad", AGENT, &script(body));
        assert_eq!(files.len(), usize::from(is_found), "{body}");
    }
}

#[test]
fn a_loop_of_another_file_keeps_a_list() {
    let module = "\
import torch

def measure(model, criterion, losses, x, y):
    loss = criterion(model(x), y)
    losses.append(loss)
    loss.backward()
";
    let script = |list: &str, inside: &str| {
        format!(
            "import torch\nfrom steps import measure\nmodel = torch.nn.Linear(4, 4)\ncriterion = torch.nn.MSELoss()\n{list}for x, y in loader:\n{inside}    measure(model, criterion, losses, x, y)\n"
        )
    };
    let rule = "tensor-running-loss";
    assert_eq!(found(rule, module, &script("losses = []\n", "")), ["steps.py"]);
    assert_eq!(found(rule, module, &script("", "    losses = []\n")), [] as [&str; 0]);
}

#[test]
fn a_function_is_told_which_model_it_gets() {
    let module = "\
import torch

def compute(criterion, guide, net, x):
    aim = guide(x)
    return criterion(net(x), aim)
";
    let script = |frozen: &str| {
        format!(
            "\
import torch
from steps import compute
net = torch.nn.Linear(4, 4)
guide = torch.nn.Linear(4, 4)
guide.load_state_dict(torch.load(\"guide.pt\"))
guide.eval()
{frozen}criterion = torch.nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters())
for x, y in loader:
    optimizer.zero_grad()
    loss = compute(criterion, guide, net, x)
    loss.backward()
    optimizer.step()
"
        )
    };
    let rule = "gradients-for-nothing";
    assert_eq!(found(rule, module, &script("")), ["steps.py"]);
    assert_eq!(found(rule, module, &script("guide.requires_grad_(False)\n")), [] as [&str; 0]);
}

#[test]
fn a_mode_is_that_of_each_caller() {
    let module = "\
import torch

class World(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(4, 4)

    @torch.no_grad()
    def plan(self, x):
        return self.unroll(x)

    def unroll(self, x):
        return self.encoder(x).pow(2).mean()
";
    let script = |context: &str| {
        format!(
            "import torch\nfrom steps import World\nworld = World()\nfor x in loader:\n    {context}loss = world.unroll(x)\n    loss.backward()\n"
        )
    };
    let rule = "backward-on-no-grad-loss";
    assert_eq!(found(rule, module, &script("")), [] as [&str; 0]);
    assert_eq!(found(rule, module, &script("with torch.no_grad(): ")), ["train.py"]);
}

#[test]
fn a_caller_differentiates_a_leaf() {
    let module = "\
import torch

def compute(model, criterion, x, y):
    loss = criterion(model(x), y)
    loss = torch.tensor(loss.item(), requires_grad=True)
    return loss
";
    let script = |end: &str| {
        format!(
            "import torch\nfrom steps import compute\nmodel = torch.nn.Linear(4, 4)\ncriterion = torch.nn.MSELoss()\nfor x, y in loader:\n    loss = compute(model, criterion, x, y)\n    {end}\n"
        )
    };
    let rule = "backward-on-no-grad-loss";
    assert_eq!(found(rule, module, &script("loss.backward()")), ["steps.py"]);
    assert_eq!(found(rule, module, &script("print(loss)")), [] as [&str; 0]);
}
