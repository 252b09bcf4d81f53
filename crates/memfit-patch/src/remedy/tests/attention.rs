//! Attention that is written out, and when it becomes one call.

use super::*;

const ATTENTION: &str = "import math\nimport torch\n\nclass Attention(torch.nn.Module):\n    def forward(self, q, k, v, d, mask):\n        scores = q @ k.transpose(-2, -1) / math.sqrt(d)\n        weights = torch.softmax(scores, dim=-1)\n        out = weights @ v\n        return out\n";

#[test]
fn attention_that_is_written_out_becomes_one_call_with_its_own_scale() {
    let call = "torch.nn.functional.scaled_dot_product_attention";
    for (product, scale) in [
        // The square root of another dimension is an explicit scale, not the default one.
        ("q @ k.transpose(-2, -1) / math.sqrt(d)", "1 / math.sqrt(d)"),
        ("q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5", "1 / (q.shape[-1] ** 0.5)"),
        ("torch.matmul(q, k.mT) * 0.125", "0.125"),
        ("q @ k.mT", "1.0"),
        ("0.5 * (q @ k.mT)", "0.5"),
    ] {
        let text = ATTENTION.replace("q @ k.transpose(-2, -1) / math.sqrt(d)", product);
        let change =
            changed(&text, Lever::Sdpa, &["weights = "]).unwrap_or_else(|why| panic!("{product}: {why}"));
        assert_eq!(lines(&change)[3], format!("+        out = {call}(q, k, v, scale={scale})"));
    }
}

#[test]
fn a_scale_may_have_a_name_if_it_is_a_number() {
    for (before, product, scale) in [
        ("scale = q.shape[-1] ** -0.5", "q @ k.mT * scale", Some("scale")),
        ("scale = 1 / math.sqrt(q.size(-1))", "q @ k.mT * scale", Some("scale")),
        ("batch, length, width = q.shape", "q @ k.mT / width ** 0.5", Some("1 / (width ** 0.5)")),
        ("width = len(q) * 2", "q @ k.mT / math.sqrt(width)", Some("1 / math.sqrt(width)")),
        ("rows, columns = other(q)\n        scale = 0.5", "q @ k.mT * scale", Some("scale")),
        ("scale = other(q)", "q @ k.mT * scale", None),
        ("scale = -other\n        other = -scale", "q @ k.mT * scale", None),
        ("scale = 1 / d", "q @ k.mT * scale", None),
        ("batch, length, width = other(q)", "q @ k.mT / width ** 0.5", None),
        ("scale = 2.0\n        scale = other(q)", "q @ k.mT * scale", None),
        ("pass", "q @ k.mT * mask", None),
        ("pass", "q @ k.mT / (d + 1)", None),
        ("pass", "q @ k.mT * self.scale", None),
    ] {
        let text = ATTENTION.replace(
            "scores = q @ k.transpose(-2, -1) / math.sqrt(d)",
            &format!("{before}\n        scores = {product}"),
        );
        match (changed(&text, Lever::Sdpa, &["weights = "]), scale) {
            (Ok(change), Some(scale)) => {
                let call = format!("attention(q, k, v, scale={scale})");
                assert!(lines(&change)[3].ends_with(&call), "{before}: {:?}", lines(&change));
            }
            (change, None) => assert!(refused(change).contains("may be a tensor"), "{before}, {product}"),
            (other, Some(_)) => panic!("{before}, {product}: {other:?}"),
        }
    }
}

#[test]
fn other_attention_is_left_as_it_is() {
    for (from, to, why) in [
        ("math.sqrt(d)", "d", "may be a tensor"),
        ("math.sqrt(d)", "self.temperature", "may be a tensor"),
        ("math.sqrt(d)", "self.sizes[0]", "may be a tensor"),
        ("return out", "return out, weights", "`weights` is used again"),
        ("        out =", "        # The mixture.\n        out =", "comments"),
    ] {
        let why_refused = refused(changed(&ATTENTION.replace(from, to), Lever::Sdpa, &["weights = "]));
        assert!(why_refused.contains(why), "{to}: {why_refused}");
    }
    for (from, to) in [
        ("torch.softmax(scores, dim=-1)", "scores.relu()"),
        ("q @ k.transpose(-2, -1)", "q @ k"),
        ("weights @ v", "weights + v"),
    ] {
        let other = changed(&ATTENTION.replace(from, to), Lever::Sdpa, &["weights = "]);
        assert_eq!(other, Err(Refusal::NotHere), "{to}");
    }
}

/// Attention in many ways, by the statements of a forward method, with the statements that replace them.
#[test]
fn attention_is_followed_from_its_product_to_its_values() {
    let call = "torch.nn.functional.scaled_dot_product_attention";
    let cases: &[(&[&str], &[&str])] = &[
        (
            &[
                "s = q @ k.mT",
                "s = s / math.sqrt(8)",
                "s = s.masked_fill(mask == 0, float(\"-inf\"))",
                "s = s.softmax(dim=-1)",
                "return self.out(s @ v)",
            ],
            &["return self.out(CALL(q, k, v, attn_mask=mask != 0, scale=1 / math.sqrt(8)))"],
        ),
        (
            &[
                "s = (q @ k.transpose(2, 3) * 0.5).masked_fill(causal, -torch.inf)",
                "return s.softmax(-1) @ v",
            ],
            &[],
        ),
        (
            &[
                "s = q @ k.transpose(2, 3) * 0.5",
                "s = s.masked_fill(causal, -torch.inf)",
                "w = torch.softmax(s, -1)",
                "y = (w @ v).transpose(1, 2).reshape(x.shape)",
                "return y",
            ],
            &[
                "y = (CALL(q, k, v, attn_mask=~causal, scale=0.5)).transpose(1, 2).reshape(x.shape)",
                "return y",
            ],
        ),
        // The inversion belongs to the first operand alone.
        (
            &[
                "s = q @ k.mT * 0.5",
                "s = s.masked_fill(~mask & causal, -torch.inf)",
                "w = s.softmax(-1)",
                "return w @ v",
            ],
            &["return CALL(q, k, v, attn_mask=~(~mask & causal), scale=0.5)"],
        ),
        (
            &[
                "s = q @ k.mT * 0.5",
                "s = s.masked_fill(~mask, -torch.inf)",
                "w = s.softmax(-1)",
                "return w @ v",
            ],
            &["return CALL(q, k, v, attn_mask=mask, scale=0.5)"],
        ),
        (&["return torch.softmax(q @ k.mT * 0.5, dim=-1) @ v"], &["return CALL(q, k, v, scale=0.5)"]),
        (
            &[
                "s = (q.transpose(1, 2) @ k / x.shape[1] ** 0.5).softmax(-1)",
                "return x + (v @ s.transpose(1, 2)).view_as(x)",
            ],
            &[
                "return x + (CALL(q.transpose(1, 2).contiguous().unsqueeze(1), k.transpose(-2, -1).contiguous().unsqueeze(1), v.transpose(-2, -1).contiguous().unsqueeze(1), scale=1 / (x.shape[1] ** 0.5)).squeeze(1).transpose(-2, -1)).view_as(x)",
            ],
        ),
        (
            &[
                "energy = torch.bmm(q.permute(0, 2, 1), k)",
                "weights = energy.softmax(dim=-1)",
                "out = torch.bmm(v, weights.permute(0, 2, 1))",
                "return out",
            ],
            &[
                "out = CALL(q.permute(0, 2, 1).contiguous().unsqueeze(1), k.transpose(-2, -1).contiguous().unsqueeze(1), v.transpose(-2, -1).contiguous().unsqueeze(1), scale=1.0).squeeze(1).transpose(-2, -1)",
                "return out",
            ],
        ),
        (
            &["s = torch.bmm(q, k.transpose(1, 2))", "s = s.softmax(-1)", "return torch.bmm(s, v)"],
            &["return CALL(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), scale=1.0).squeeze(1)"],
        ),
    ];
    for (written, expected) in cases {
        let text = |lines: &[&str]| {
            let body = format!("        {}\n", lines.join("\n        "));
            format!(
                "import math\nimport torch\n\nclass Attention(torch.nn.Module):\n    def forward(self, x, q, k, v, mask, causal):\n{body}"
            )
        };
        let made = changed(&text(written), Lever::Sdpa, &["softmax"]);
        if expected.is_empty() {
            assert!(made.is_err(), "{written:?}: {made:?}");
            continue;
        }
        let change = made.unwrap_or_else(|why| panic!("{written:?}: {why}"));
        let expected: Vec<String> = expected.iter().map(|line| line.replace("CALL", call)).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        assert_eq!(change.after, text(&expected), "{written:?}");
    }
}

#[test]
fn attention_that_is_no_single_call_says_why() {
    let all = "s = q @ k.mT * 0.5\n        CHANGE\n        return s @ v\n";
    for (change, why) in [
        ("s = s.softmax(-1)\n        s = self.drop(s)", "`s = self.drop(s)` has to become `dropout_p=`"),
        ("s = s + bias\n        s = s.softmax(-1)", "`s = s + bias` is no part of that call"),
        ("s = (s + bias).softmax(-1)", "changes the scores as well"),
        ("s = s.masked_fill(mask, -1e9)\n        s = s.softmax(-1)", "is no part of that call"),
        ("s = torch.softmax(s, dim=1)", "is no part of that call"),
        ("s = torch.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype)", "is no part of that call"),
        ("print(s)\n        s = s.softmax(-1)", "`print(s)` is between its products"),
        ("self.seen = s\n        s = s.softmax(-1)", "is between its products"),
        ("s = s.softmax(-1)\n        n = n + 1", "`n = n + 1` is between its products"),
    ] {
        let text = format!(
            "import torch\n\nclass Attention(torch.nn.Module):\n    def forward(self, q, k, v):\n        {}",
            all.replace("CHANGE", change)
        );
        let told = refused(changed(&text, Lever::Sdpa, &["softmax"]));
        assert!(told.contains(why), "{change}: {told}");
    }
}
