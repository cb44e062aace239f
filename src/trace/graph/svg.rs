//! Pictures of Programs as SVG, for people.
//!
//! The layout is the layered one of Sugiyama, Tagawa and Toda (1981), in its plainest form: each
//! node is one layer below the lowest that it depends on; edges over several layers pass through
//! points in between; layers are ordered by the barycentres of their nodes' neighbours; and
//! positions along a layer are the nearest to those barycentres that keep the order. Bodies of
//! control flow are laid out alone and drawn inside their equation's box.

use std::fmt::Write;

use super::super::op::Op;
use super::super::print::{labels, op_params};
use super::super::program::{Equation, Program, Var};

/// Width of a letter, height of a line, distance of neighbours, distance of layers, and the space
/// around the contents of a box.
const LETTER: f64 = 6.1;
const LINE: f64 = 13.0;
const APART: f64 = 12.0;
const BETWEEN: f64 = 24.0;
const MARGIN: f64 = 8.0;
/// Letters of a line of a box.
const MAX_LABEL: usize = 30;

/// The data-flow graph as an SVG picture, with the bodies of control flow as boxes in boxes.
/// Constants are drawn in the boxes that use them. A box under the pointer shows its parameters.
///
/// It can be read up to some hundreds of equations; see [`svg_folded`] for more.
pub fn svg(program: &Program) -> String {
    svg_folded(program, usize::MAX)
}

/// As [`svg`], with `fold` levels of bodies drawn; those below are counted.
pub fn svg_folded(program: &Program, fold: usize) -> String {
    let mut text = String::new();
    let picture = Picture::of(program, fold);
    let (width, height) = (picture.width + 2.0 * MARGIN, picture.height + 2.0 * MARGIN);
    let _ = write!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n<style>\n\
         text {{ font: 10px monospace; text-anchor: middle; fill: #222 }}\n\
         .t {{ fill: #777; font-size: 9px }}\n.l {{ text-anchor: start; font-weight: bold }}\n\
         rect {{ fill: #fff; stroke: #888; rx: 3px }}\nrect.i {{ fill: #dbe9f6 }}\n\
         rect.o {{ fill: #fde8cf }}\nrect.p {{ fill: #e3f1da }}\nrect.c {{ fill: #f6f4fa }}\n\
         rect.b {{ fill: #fdfdfd; stroke: #bbb; stroke-dasharray: 3 2 }}\n\
         path {{ fill: none; stroke: #666; stroke-opacity: .55 }}\n</style>\n\
         <rect width=\"100%\" height=\"100%\" style=\"stroke: none\"/>\n"
    );
    picture.draw(&mut text, MARGIN, MARGIN);
    text.push_str("</svg>\n");
    text
}

/// A Program laid out: boxes and lines from its upper left corner.
struct Picture {
    width: f64,
    height: f64,
    nodes: Vec<Node>,
    /// Corners of the lines, from above to below.
    lines: Vec<Vec<(f64, f64)>>,
}

struct Node {
    /// Centre, and upper edge.
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    class: &'static str,
    /// Tooltip text.
    title: String,
    name: String,
    ty: String,
    bodies: Vec<(String, Picture)>,
}

impl Node {
    fn new(class: &'static str, name: String, ty: String) -> Node {
        let (name, ty) = (shortened(name), shortened(ty));
        let letters = name.len().max(ty.len()) as f64;
        let lines = 1 + !ty.is_empty() as usize;
        Node {
            x: 0.0,
            y: 0.0,
            width: letters * LETTER + 2.0 * MARGIN,
            height: lines as f64 * LINE + MARGIN,
            class,
            title: String::new(),
            name,
            ty,
            bodies: Vec::new(),
        }
    }

    /// A point where a long line passes a layer.
    fn point() -> Node {
        Node { width: 0.0, height: 0.0, ..Node::new("", String::new(), String::new()) }
    }

    fn of(
        program: &Program,
        equation: &Equation,
        constants: &[Option<String>],
        fold: usize,
    ) -> Node {
        let op = &equation.op;
        let mut name = op.name().to_string();
        for constant in equation.inputs.iter().filter_map(|var| constants[var.index()].as_ref()) {
            let _ = write!(name, " {constant}");
        }
        let types: Vec<String> =
            equation.outputs.iter().map(|&var| program.ty(var).to_string()).collect();
        let class = match (op.facts().product, op.subprograms().next()) {
            (true, _) => "p",
            (false, Some(_)) => "c",
            (false, None) => "",
        };
        let hidden = fold == 0 && class == "c";
        if hidden {
            let size: usize = op.subprograms().map(Program::size).sum();
            let _ = write!(name, " ({size} equations)");
        }
        let mut node = Node::new(class, name, types.join(" "));
        let mut params = String::new();
        let _ = op_params(&mut params, op);
        if !params.is_empty() {
            node.title = format!("{}[{params}]", op.name());
        }
        if class == "c" && !hidden {
            let pictures = op.subprograms().map(|sub| Picture::of(sub, fold - 1));
            node.bodies = labels(op).into_iter().zip(pictures).collect();
            let inside: f64 = node.bodies.iter().map(|(_, p)| p.width + 3.0 * MARGIN).sum();
            let tallest = node.bodies.iter().map(|(_, p)| p.height).fold(0.0, f64::max);
            node.width = node.width.max(inside + MARGIN);
            node.height += tallest + LINE + 3.0 * MARGIN;
        }
        node
    }

    fn draw(&self, text: &mut String, x: f64, y: f64) {
        let (left, top) = (x + self.x - self.width / 2.0, y + self.y);
        let class = if self.class.is_empty() {
            String::new()
        } else {
            format!(" class=\"{}\"", self.class)
        };
        let _ = write!(
            text,
            "<g><rect{class} x=\"{left:.0}\" y=\"{top:.0}\" width=\"{:.0}\" height=\"{:.0}\"/>",
            self.width, self.height
        );
        if !self.title.is_empty() {
            let _ = write!(text, "<title>{}</title>", escaped(&self.title));
        }
        let (x_text, y_text) = (x + self.x, top + LINE);
        let _ = write!(
            text,
            "<text x=\"{x_text:.0}\" y=\"{y_text:.0}\">{}</text>",
            escaped(&self.name)
        );
        if !self.ty.is_empty() {
            let y = y_text + LINE - 1.0;
            let ty = escaped(&self.ty);
            let _ = write!(text, "<text class=\"t\" x=\"{x_text:.0}\" y=\"{y:.0}\">{ty}</text>");
        }
        text.push_str("</g>\n");
        let mut left = left + MARGIN;
        let top = top + 2.0 * LINE + MARGIN;
        for (label, picture) in &self.bodies {
            let (width, height) = (picture.width + 2.0 * MARGIN, picture.height + LINE + MARGIN);
            let _ = writeln!(
                text,
                "<rect class=\"b\" x=\"{left:.0}\" y=\"{top:.0}\" width=\"{width:.0}\" \
                 height=\"{height:.0}\"/><text class=\"l\" x=\"{:.0}\" y=\"{:.0}\">{label}</text>",
                left + 4.0,
                top + LINE - 2.0
            );
            picture.draw(text, left + MARGIN, top + LINE);
            left += width + MARGIN;
        }
    }
}

fn shortened(text: String) -> String {
    if text.len() <= MAX_LABEL { text } else { format!("{}..", &text[..MAX_LABEL - 2]) }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Picture {
    fn of(program: &Program, fold: usize) -> Picture {
        // Constants without a box of their own.
        let mut constants: Vec<Option<String>> = vec![None; program.types.len()];
        for equation in &program.equations {
            if let Op::Constant(literal) = &equation.op {
                let value = if literal.is_splat() || literal.ty().numel() == 1 {
                    literal.element_text(0)
                } else {
                    literal.ty().to_string()
                };
                constants[equation.outputs[0].index()] = Some(value);
            }
        }
        let mut graph = Graph::default();
        let mut made_by: Vec<Option<usize>> = vec![None; program.types.len()];
        for (i, &var) in program.inputs.iter().enumerate() {
            let node = Node::new("i", format!("in {i}"), program.ty(var).to_string());
            made_by[var.index()] = Some(graph.add(node, &[]));
        }
        for equation in &program.equations {
            if matches!(equation.op, Op::Constant(_)) {
                continue;
            }
            let above = |var: &Var| made_by[var.index()];
            let above: Vec<usize> = equation.inputs.iter().filter_map(above).collect();
            let id = graph.add(Node::of(program, equation, &constants, fold), &above);
            equation.outputs.iter().for_each(|var| made_by[var.index()] = Some(id));
        }
        for (i, var) in program.outputs.iter().enumerate() {
            let name = match &constants[var.index()] {
                Some(constant) => format!("out {i} {constant}"),
                None => format!("out {i}"),
            };
            let node = Node::new("o", name, program.ty(*var).to_string());
            let above: Vec<usize> = made_by[var.index()].into_iter().collect();
            graph.add(node, &above);
        }
        graph.sink_sources(program.inputs.len());
        graph.laid_out()
    }

    fn draw(&self, text: &mut String, x: f64, y: f64) {
        if !self.lines.is_empty() {
            text.push_str("<path d=\"");
        }
        for line in &self.lines {
            // From point to point, in whole numbers: a picture has thousands of these.
            let whole = |&(cx, cy): &(f64, f64)| ((cx + x).round(), (cy + y).round());
            let mut corners = line.iter().map(whole);
            let Some((mut px, mut py)) = corners.next() else { continue };
            let _ = write!(text, "M{px} {py}");
            for (cx, cy) in corners {
                let (dx, dy) = (cx - px, cy - py);
                let middle = (dy / 2.0).round();
                let _ = match dx == 0.0 {
                    true => write!(text, "v{dy}"),
                    false => write!(text, "c0 {middle} {dx} {} {dx} {dy}", dy - middle),
                };
                (px, py) = (cx, cy);
            }
            text.push('\n');
        }
        if !self.lines.is_empty() {
            text.push_str("\"/>\n");
        }
        self.nodes.iter().for_each(|node| node.draw(text, x, y));
    }
}

/// Nodes with their layers, numbered so that edges go from lower numbers to higher.
#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    layers: Vec<usize>,
    /// Predecessors of each node.
    above: Vec<Vec<usize>>,
}

impl Graph {
    fn add(&mut self, node: Node, above: &[usize]) -> usize {
        let layer = above.iter().map(|&i| self.layers[i] + 1).max().unwrap_or(0);
        let mut above = above.to_vec();
        above.sort_unstable();
        above.dedup();
        self.nodes.push(node);
        self.layers.push(layer);
        self.above.push(above);
        self.nodes.len() - 1
    }

    /// Moves nodes without predecessors down to just above their first use, but the first `inputs`
    /// nodes only as far as all their users allow too.
    fn sink_sources(&mut self, inputs: usize) {
        for i in 0..self.nodes.len() {
            if !self.above[i].is_empty() {
                continue;
            }
            let users = (0..self.nodes.len()).filter(|&j| self.above[j].contains(&i));
            let first = users.map(|j| self.layers[j]).min();
            if let Some(first) = first.filter(|&first| first > 0) {
                self.layers[i] = first - 1;
            } else if i >= inputs {
                self.layers[i] = 0;
            }
        }
    }

    fn laid_out(self) -> Picture {
        let Graph { mut nodes, layers: mut layer_of, above } = self;
        let count = nodes.len();
        // Long lines pass through points; lines from one node share theirs.
        let mut joined: Vec<(usize, usize)> = Vec::new();
        let mut routes: Vec<Vec<usize>> = Vec::new();
        let mut points: Vec<Vec<usize>> = vec![Vec::new(); count];
        for below in 0..count {
            for &from in &above[below] {
                let steps = layer_of[below] - layer_of[from] - 1;
                while points[from].len() < steps {
                    let last = points[from].last().copied().unwrap_or(from);
                    let point = nodes.len();
                    layer_of.push(layer_of[last] + 1);
                    nodes.push(Node::point());
                    joined.push((last, point));
                    points[from].push(point);
                }
                let last = if steps == 0 { from } else { points[from][steps - 1] };
                joined.push((last, below));
                routes.push(vec![last, below]);
            }
        }
        for (from, points) in
            points.into_iter().enumerate().filter(|(_, points)| !points.is_empty())
        {
            routes.push(std::iter::once(from).chain(points).collect());
        }
        let depth = layer_of.iter().max().map_or(0, |&last| last + 1);
        let mut layers: Vec<Vec<usize>> = vec![Vec::new(); depth];
        for (node, &layer) in layer_of.iter().enumerate() {
            layers[layer].push(node);
        }
        let mut neighbours = [vec![Vec::new(); nodes.len()], vec![Vec::new(); nodes.len()]];
        for &(from, to) in &joined {
            neighbours[0][to].push(from);
            neighbours[1][from].push(to);
        }
        order(&mut layers, &neighbours);
        let (places, width) = place(&layers, &neighbours, &nodes);
        let mut y = 0.0;
        for layer in &layers {
            let height = layer.iter().map(|&i| nodes[i].height).fold(0.0, f64::max);
            for &i in layer {
                (nodes[i].x, nodes[i].y) = (places[i], y);
                // A line goes straight down past the boxes beside it.
                if i >= count {
                    nodes[i].height = height;
                }
            }
            y += height + BETWEEN;
        }
        let corners = |route: &Vec<usize>| {
            let mut corners = Vec::new();
            for (k, &i) in route.iter().enumerate() {
                let node = &nodes[i];
                if k > 0 {
                    corners.push((node.x, node.y));
                }
                // A line that joins others ends at their start.
                if k + 1 < route.len() || i >= count {
                    corners.push((node.x, node.y + node.height));
                }
            }
            corners
        };
        let lines = routes.iter().map(corners).collect();
        nodes.truncate(count);
        Picture { width, height: (y - BETWEEN).max(0.0), nodes, lines }
    }
}

/// Orders each layer by the mean position of its nodes' neighbours, alternating between the layers
/// above and below.
fn order(layers: &mut [Vec<usize>], neighbours: &[Vec<Vec<usize>>; 2]) {
    let count = neighbours[0].len();
    let mut rank = vec![0.0; count];
    let number = |layer: &[usize], rank: &mut [f64]| {
        let n = layer.len() as f64;
        layer.iter().enumerate().for_each(|(i, &node)| rank[node] = (i as f64 + 0.5) / n);
    };
    layers.iter().for_each(|layer| number(layer, &mut rank));
    for sweep in 0..12 {
        let side = sweep % 2;
        for step in 0..layers.len() {
            let layer = if side == 0 { step } else { layers.len() - 1 - step };
            let middle = |&node: &usize| {
                let others = &neighbours[side][node];
                let sum: f64 = others.iter().map(|&other| rank[other]).sum();
                if others.is_empty() { rank[node] } else { sum / others.len() as f64 }
            };
            let mut keyed: Vec<(f64, usize)> =
                layers[layer].iter().map(|node| (middle(node), *node)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            layers[layer] = keyed.into_iter().map(|(_, node)| node).collect();
            number(&layers[layer], &mut rank);
        }
    }
}

/// The centre of each node, and the width of all.
fn place(
    layers: &[Vec<usize>],
    neighbours: &[Vec<Vec<usize>>; 2],
    nodes: &[Node],
) -> (Vec<f64>, f64) {
    let mut centre = vec![0.0; nodes.len()];
    // Minimum distance of each node from the first of its layer.
    let mut offset = vec![0.0; nodes.len()];
    for layer in layers {
        let mut at = 0.0;
        for (i, &node) in layer.iter().enumerate() {
            if i > 0 {
                at += (nodes[layer[i - 1]].width + nodes[node].width) / 2.0 + APART;
            }
            (offset[node], centre[node]) = (at, at);
        }
    }
    for sweep in 0..24 {
        let side = sweep % 2;
        for step in 0..layers.len() {
            let layer = &layers[if side == 0 { step } else { layers.len() - 1 - step }];
            let wish = |&node: &usize| {
                let others = &neighbours[side][node];
                let sum: f64 = others.iter().map(|&other| centre[other]).sum();
                let middle =
                    if others.is_empty() { centre[node] } else { sum / others.len() as f64 };
                middle - offset[node]
            };
            let wishes: Vec<f64> = layer.iter().map(wish).collect();
            for (node, x) in layer.iter().zip(nearest_increasing(&wishes)) {
                centre[*node] = x + offset[*node];
            }
        }
    }
    let edge = |sign: f64| {
        let edges = nodes.iter().zip(&centre).map(|(node, x)| sign * x + node.width / 2.0);
        edges.fold(f64::NEG_INFINITY, f64::max)
    };
    if nodes.is_empty() {
        return (centre, 0.0);
    }
    let (left, right) = (-edge(-1.0), edge(1.0));
    centre.iter_mut().for_each(|x| *x -= left);
    (centre, right - left)
}

/// The numbers that never decrease and are nearest to `wishes` by least squares: neighbours out of
/// order are pooled at their mean.
fn nearest_increasing(wishes: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for &wish in wishes {
        let mut pool = (wish, 1);
        while let Some(&(sum, n)) = pools.last() {
            if sum / n as f64 <= pool.0 / pool.1 as f64 {
                break;
            }
            pools.pop();
            pool = (pool.0 + sum, pool.1 + n);
        }
        pools.push(pool);
    }
    pools.iter().flat_map(|&(sum, n)| std::iter::repeat_n(sum / n as f64, n)).collect()
}
