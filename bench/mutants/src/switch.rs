//! Sources with mutants behind a switch: `a + b` becomes `mutants::add(17, a, b)`, which subtracts when mutant 17 is on and
//! multiplies when it is 18. Text is only inserted around what stands there, so that changes nest.

use crate::list::Mutant;
use proc_macro2::{LineColumn, Span};
use std::collections::HashMap;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, UnOp};

/// Mutants of one place, side by side in the list; numbers are those of the list.
pub struct Place {
    pub first: usize,
    pub count: usize,
    /// In the switched text: all of it, and what was put there for it.
    pub whole: Range<usize>,
    pub own: Vec<Range<usize>>,
}

/// A source's new text and its places; mutants of the list at none of these could not be put behind a switch.
pub struct Switched {
    pub text: String,
    pub places: Vec<Place>,
}

/// What becomes of a place in the source.
struct Change {
    first: usize,
    count: usize,
    whole: Range<usize>,
    /// Text before a position, in the order of visits; behind one, in the reverse order; instead of a range.
    open: Vec<(usize, String)>,
    close: Vec<(usize, String)>,
    instead: Vec<(Range<usize>, String)>,
}

struct Visitor<'a> {
    lines: Vec<usize>,
    source: &'a str,
    /// How the module of the switch is named from here.
    path: &'static str,
    /// By genre, line and column: numbers in the list, one after the other.
    wanted: HashMap<(&'a str, usize, usize), Vec<usize>>,
    list: &'a [Mutant],
    changes: Vec<Change>,
    /// Within an expression that the compiler computes.
    constant: usize,
}

/// Puts the mutants of a file behind the switch but those that are `left` out.
pub fn switch(source: &str, file: &str, list: &[Mutant], left: &dyn Fn(usize) -> bool) -> Switched {
    let mut wanted: HashMap<_, Vec<usize>> = HashMap::new();
    for (i, m) in list.iter().enumerate().filter(|(_, m)| m.file == file) {
        wanted.entry((m.genre.as_str(), m.line, m.column)).or_default().push(i);
    }
    wanted.retain(|_, numbers| !numbers.iter().any(|&i| left(i)));
    let lines = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let path = if file.starts_with("core/") { "crate" } else { "::iceformer_core" };
    let mut v = Visitor { lines, source, path, wanted, list, changes: Vec::new(), constant: 0 };
    v.visit_file(&syn::parse_file(source).unwrap_or_else(|e| panic!("{file}: {e}")));
    v.apply()
}

/// Where text goes in, in which order at one place, how much it replaces, the text, and the mutant.
type Edit = (usize, (u8, isize), usize, String, usize);

impl<'a> Visitor<'a> {
    fn offset(&self, at: LineColumn) -> usize {
        let line = self.lines[at.line - 1];
        line + self.source[line..].chars().take(at.column).map(char::len_utf8).sum::<usize>()
    }

    fn range(&self, span: Span) -> Range<usize> {
        self.offset(span.start())..self.offset(span.end())
    }

    fn text(&self, span: Span) -> &'a str {
        &self.source[self.range(span)]
    }

    /// The mutants of a genre at a place, unless it is computed by the compiler.
    fn take(&mut self, genre: &'static str, at: LineColumn) -> Vec<usize> {
        if self.constant > 0 {
            return Vec::new();
        }
        self.wanted.remove(&(genre, at.line, at.column + 1)).unwrap_or_default()
    }

    fn change(&mut self, numbers: &[usize], span: Range<usize>) -> &mut Change {
        let (first, count) = (numbers[0], numbers.len());
        self.changes.push(Change { first, count, whole: span, open: vec![], close: vec![], instead: vec![] });
        self.changes.last_mut().unwrap()
    }

    /// Whether replacements are these, in this order.
    fn are(&self, numbers: &[usize], with: &[&str]) -> bool {
        numbers.len() == with.len()
            && numbers.iter().zip(with).all(|(&i, with)| self.list[i].replacement == *with)
            && numbers.windows(2).all(|w| w[0] + 1 == w[1])
    }

    fn binary(&mut self, e: &syn::ExprBinary) {
        let numbers = self.take("BinaryOperator", e.op.span().start());
        if numbers.is_empty() || has_let(&e.left) || has_let(&e.right) {
            return;
        }
        let (name, with): (_, &[&str]) = match e.op {
            BinOp::Add(_) => ("add", &["-", "*"]),
            BinOp::Sub(_) => ("sub", &["+", "/"]),
            BinOp::Mul(_) => ("mul", &["+", "/"]),
            BinOp::Div(_) => ("div", &["%", "*"]),
            BinOp::Rem(_) => ("rem", &["/", "+"]),
            BinOp::BitAnd(_) => ("bitand", &["|", "^"]),
            BinOp::BitOr(_) => ("bitor", &["&", "^"]),
            BinOp::BitXor(_) => ("bitxor", &["|", "&"]),
            BinOp::Shl(_) => ("shl", &[">>"]),
            BinOp::Shr(_) => ("shr", &["<<"]),
            BinOp::Eq(_) => ("eq", &["!="]),
            BinOp::Ne(_) => ("ne", &["=="]),
            BinOp::Lt(_) => ("lt", &["==", ">", "<="]),
            BinOp::Gt(_) => ("gt", &["==", "<", ">="]),
            BinOp::Le(_) => ("le", &[">"]),
            BinOp::Ge(_) => ("ge", &["<"]),
            BinOp::And(_) => ("and", &["||"]),
            BinOp::Or(_) => ("or", &["&&"]),
            BinOp::AddAssign(_) => ("=add", &["-=", "*="]),
            BinOp::SubAssign(_) => ("=sub", &["+=", "/="]),
            BinOp::MulAssign(_) => ("=mul", &["+=", "/="]),
            BinOp::DivAssign(_) => ("=div", &["%=", "*="]),
            BinOp::BitOrAssign(_) => ("=or_assign", &["&="]),
            BinOp::BitAndAssign(_) => ("=and_assign", &["|="]),
            _ => return,
        };
        if !self.are(&numbers, with) {
            return;
        }
        let (left, op, right) = (self.range(e.left.span()), self.range(e.op.span()), self.range(e.right.span()));
        let (n, path) = (numbers[0], self.path);
        let change = self.change(&numbers, left.start..right.end);
        let (open, between, close) = match (name, &e.op) {
            // Both ways are evaluated as far as they would be without a switch: not (not a and not b) is a or b.
            ("and" | "or", _) => {
                let op = if name == "and" { "&&" } else { "||" };
                (
                    format!("({{ let _on = {path}::mutants::on({n}); _on ^ ((_on ^ ("),
                    format!(")) {op} (_on ^ ("),
                    "))) })".to_string(),
                )
            }
            (_, BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Gt(_) | BinOp::Le(_) | BinOp::Ge(_)) => {
                (format!("{path}::mutants::{name}({n}, &("), "), &(".to_string(), "))".to_string())
            }
            _ => match name.strip_prefix('=') {
                Some(name) => (format!("{path}::ice_assign!({name}, {n}, "), ", ".to_string(), ")".to_string()),
                None => (format!("{path}::mutants::{name}({n}, "), ", ".to_string(), ")".to_string()),
            },
        };
        change.open.push((left.start, open));
        change.instead.push((op, between));
        change.close.push((right.end, close));
    }

    fn unary(&mut self, e: &syn::ExprUnary) {
        let numbers = self.take("UnaryOperator", e.op.span().start());
        let name = match e.op {
            UnOp::Not(_) => "not",
            UnOp::Neg(_) => "neg",
            _ => return,
        };
        if numbers.len() != 1 {
            return;
        }
        let (op, end) = (self.range(e.op.span()), self.range(e.expr.span()).end);
        let text = format!("{}::mutants::{name}({}, ", self.path, numbers[0]);
        let change = self.change(&numbers, op.start..end);
        change.instead.push((op, text));
        change.close.push((end, ")".to_string()));
    }

    /// Values returned at the head of a function.
    fn body(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else { return };
        let at = self.offset(block.brace_token.span.open().end());
        for n in self.take("FnValue", first.span().start()) {
            let text = format!(" if {}::mutants::on({n}) {{ return {}; }}", self.path, self.list[n].replacement);
            self.change(&[n], at..at).open.push((at, text));
        }
    }

    fn arm(&mut self, arm: &syn::Arm) {
        let deleted = self.take("MatchArm", arm.span().start());
        let guard = arm.guard.as_ref().map(|(_, e)| &**e);
        let pattern = self.range(arm.pat.span()).end;
        let on = format!("{}::mutants::on", self.path);
        let whole = self.range(arm.span());
        if let (Some(&n), None) = (deleted.first(), guard) {
            self.change(&[n], whole.clone()).open.push((pattern, format!(" if !{on}({n})")));
        }
        let Some(guard) = guard else { return };
        let numbers = self.take("MatchArmGuard", guard.span().start());
        let constant = |with: &str| numbers.iter().find(|&&n| self.list[n].replacement == with).copied();
        if has_let(guard) {
            return;
        }
        let (never, always) = (constant("false"), constant("true"));
        let at = self.range(guard.span());
        if let Some(n) = deleted.first().copied() {
            let change = self.change(&[n], whole);
            change.open.push((at.start, format!("!{on}({n}) && (")));
            change.close.push((at.end, ")".to_string()));
        }
        for (n, before) in [(always, ""), (never, "!")] {
            let Some(n) = n else { continue };
            let op = if before.is_empty() { "||" } else { "&&" };
            let change = self.change(&[n], at.clone());
            change.open.push((at.start, format!("({before}{on}({n}) {op} (")));
            change.close.push((at.end, "))".to_string()));
        }
    }

    fn field(&mut self, field: &syn::FieldValue, rest: &Expr) {
        let numbers = self.take("StructField", field.span().start());
        let (Some(&n), syn::Member::Named(name)) = (numbers.first(), &field.member) else { return };
        let (rest, at) = (self.text(rest.span()), self.range(field.expr.span()));
        let colon = if field.colon_token.is_some() { String::new() } else { format!("{name}: ") };
        let text = format!("{colon}if {}::mutants::on({n}) {{ ({rest}).{name} }} else {{ ", self.path);
        let change = self.change(&[n], at.clone());
        change.open.push((at.start, text));
        change.close.push((at.end, " }".to_string()));
    }

    fn constant(&mut self, within: impl FnOnce(&mut Self)) {
        self.constant += 1;
        within(self);
        self.constant -= 1;
    }

    fn apply(self) -> Switched {
        // Position, rank among the edits there, end in the source, text, place.
        let mut edits: Vec<Edit> = Vec::new();
        for (i, change) in self.changes.iter().enumerate() {
            let order = i as isize;
            edits.extend(change.close.iter().map(|(at, text)| (*at, (0, -order), *at, text.clone(), i)));
            edits.extend(change.open.iter().map(|(at, text)| (*at, (1, order), *at, text.clone(), i)));
            edits.extend(change.instead.iter().map(|(at, text)| (at.start, (2, order), at.end, text.clone(), i)));
        }
        edits.sort_by_key(|e| (e.0, e.1));
        let mut text = String::new();
        let mut own = vec![Vec::new(); self.changes.len()];
        // Where a position of the source came to stand: before what was put there, and behind it.
        let mut moved = vec![(usize::MAX, 0); self.source.len() + 1];
        let mut at = 0;
        let mut edits = edits.into_iter().peekable();
        loop {
            moved[at].0 = moved[at].0.min(text.len());
            let mut skip = 0;
            while let Some(edit) = edits.next_if(|e| e.0 == at) {
                own[edit.4].push(text.len()..text.len() + edit.3.len());
                text.push_str(&edit.3);
                skip = skip.max(edit.2 - at);
            }
            moved[at].1 = text.len();
            if at == self.source.len() {
                break;
            }
            let next = self.source[at..].chars().next().unwrap();
            if skip == 0 {
                text.push(next);
            }
            at += if skip > 0 { skip } else { next.len_utf8() };
        }
        let places = self.changes.iter().zip(own).map(|(c, own)| Place {
            first: c.first,
            count: c.count,
            whole: moved[c.whole.start].0..moved[c.whole.end].1,
            own,
        });
        let places = places.collect();
        Switched { text, places }
    }
}

/// A condition that binds names cannot become an argument.
fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(e) => has_let(&e.left) || has_let(&e.right),
        Expr::Paren(e) => has_let(&e.expr),
        _ => false,
    }
}

impl<'a> Visit<'a> for Visitor<'_> {
    fn visit_expr_binary(&mut self, e: &'a syn::ExprBinary) {
        self.binary(e);
        visit::visit_expr_binary(self, e);
    }

    fn visit_expr_unary(&mut self, e: &'a syn::ExprUnary) {
        self.unary(e);
        visit::visit_expr_unary(self, e);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        self.arm(arm);
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, e: &'a syn::ExprStruct) {
        if let Some(rest) = &e.rest {
            e.fields.iter().for_each(|field| self.field(field, rest));
        }
        visit::visit_expr_struct(self, e);
    }

    fn visit_item_fn(&mut self, f: &'a syn::ItemFn) {
        if f.sig.constness.is_some() {
            return self.constant(|v| visit::visit_item_fn(v, f));
        }
        self.body(&f.block);
        visit::visit_item_fn(self, f);
    }

    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        if f.sig.constness.is_some() {
            return self.constant(|v| visit::visit_impl_item_fn(v, f));
        }
        self.body(&f.block);
        visit::visit_impl_item_fn(self, f);
    }

    fn visit_trait_item_fn(&mut self, f: &'a syn::TraitItemFn) {
        if let Some(block) = &f.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, f);
    }

    fn visit_item_const(&mut self, x: &'a syn::ItemConst) {
        self.constant(|v| visit::visit_item_const(v, x));
    }

    fn visit_impl_item_const(&mut self, x: &'a syn::ImplItemConst) {
        self.constant(|v| visit::visit_impl_item_const(v, x));
    }

    fn visit_trait_item_const(&mut self, x: &'a syn::TraitItemConst) {
        self.constant(|v| visit::visit_trait_item_const(v, x));
    }

    fn visit_item_static(&mut self, x: &'a syn::ItemStatic) {
        self.constant(|v| visit::visit_item_static(v, x));
    }

    fn visit_type_array(&mut self, x: &'a syn::TypeArray) {
        self.constant(|v| visit::visit_type_array(v, x));
    }

    fn visit_expr_repeat(&mut self, x: &'a syn::ExprRepeat) {
        self.visit_expr(&x.expr);
        self.constant(|v| v.visit_expr(&x.len));
    }

    fn visit_generic_argument(&mut self, x: &'a syn::GenericArgument) {
        self.constant(|v| visit::visit_generic_argument(v, x));
    }

    fn visit_expr_const(&mut self, x: &'a syn::ExprConst) {
        self.constant(|v| visit::visit_expr_const(v, x));
    }

    fn visit_variant(&mut self, x: &'a syn::Variant) {
        self.constant(|v| visit::visit_variant(v, x));
    }
}
