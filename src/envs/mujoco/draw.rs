//! Rendering of a simulation without OpenGL: each pixel shows the nearest solid that a ray through
//! it hits, lit by a lamp high above, which casts shadows on the floor, and by one at the camera.

use crate::envs::env::Frame;

type Vec3 = [f64; 3];

/// Shape of a solid, as MuJoCo's geoms; lengths that extend in both directions are half lengths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Shape {
    /// Front of a plane: half sizes x and y, 0 for infinite, and the side of its squares, if it has
    /// squares.
    Plane { size: [f64; 2], square: Option<f64> },
    /// Ellipsoid: its half axes, all equal for a sphere.
    Ellipsoid(Vec3),
    /// Capsule around the z axis: radius and half the length, without the round ends.
    Capsule(f64, f64),
    /// Cylinder around the z axis: radius and half the length.
    Cylinder(f64, f64),
    /// Box: half its sides.
    Box(Vec3),
}

/// Solid in the world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Solid {
    pub(super) shape: Shape,
    /// Position of its center.
    pub(super) at: Vec3,
    /// Axes in world coordinates: the columns of a row-major matrix.
    pub(super) axes: [f64; 9],
    /// Red, green, blue, from 0 to 1.
    pub(super) color: Vec3,
}

/// Camera of an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Camera {
    pub(super) at: Vec3,
    /// Right, up and backwards as columns, as in [`Solid::axes`].
    pub(super) axes: [f64; 9],
    /// Vertical field of view in degrees.
    pub(super) fovy: f64,
}

impl Camera {
    /// Makes the free camera of MuJoCo's viewer: `distance` from `lookat`, rotated by these angles
    /// in degrees.
    pub(super) fn free(lookat: Vec3, distance: f64, azimuth: f64, elevation: f64) -> Camera {
        let (sin_a, cos_a) = azimuth.to_radians().sin_cos();
        let (sin_e, cos_e) = elevation.to_radians().sin_cos();
        let forward = [cos_e * cos_a, cos_e * sin_a, sin_e];
        let up = [-sin_e * cos_a, -sin_e * sin_a, cos_e];
        let right = [sin_a, -cos_a, 0.0];
        let mut axes = [0.0; 9];
        for i in 0..3 {
            (axes[3 * i], axes[3 * i + 1], axes[3 * i + 2]) = (right[i], up[i], -forward[i]);
        }
        Camera { at: add(lookat, scale(forward, -distance)), axes, fovy: 45.0 }
    }
}

/// Direction from every point towards the lamp.
const LAMP: Vec3 = [-0.169, -0.254, 0.952];
/// Factor of the lamp's light on shaded points of the floor.
const SHADE: f64 = 0.6;
/// Minimum distance of a hit: nearer ones are the origin of the ray.
const NEAR: f64 = 1e-6;

fn add(a: Vec3, b: Vec3) -> Vec3 {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
}

fn sub(a: Vec3, b: Vec3) -> Vec3 {
    [a[0] - b[0], a[1] - b[1], a[2] - b[2]]
}

fn scale(a: Vec3, k: f64) -> Vec3 {
    [a[0] * k, a[1] * k, a[2] * k]
}

fn dot(a: Vec3, b: Vec3) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn unit(a: Vec3) -> Vec3 {
    scale(a, 1.0 / dot(a, a).sqrt().max(1e-12))
}

/// Transforms the vector `a` from world coordinates to the frame of `axes`.
fn inward(axes: &[f64; 9], a: Vec3) -> Vec3 {
    let column = |k: usize| axes[k] * a[0] + axes[3 + k] * a[1] + axes[6 + k] * a[2];
    [column(0), column(1), column(2)]
}

/// Transforms the vector `a` from the frame of `axes` to world coordinates.
fn outward(axes: &[f64; 9], a: Vec3) -> Vec3 {
    let row = |k: usize| axes[3 * k] * a[0] + axes[3 * k + 1] * a[1] + axes[3 * k + 2] * a[2];
    [row(0), row(1), row(2)]
}

/// Hit of a ray: its distance, and the surface normal there, of any length.
type Hit = (f64, Vec3);

/// Returns the nearer hit, or the only one.
fn nearer(a: Option<Hit>, b: Option<Hit>) -> Option<Hit> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
        (a, b) => a.or(b),
    }
}

/// Returns the smaller solution of `a t^2 + 2 b t + c = 0` if it is ahead of the ray's origin.
fn ahead(a: f64, b: f64, c: f64) -> Option<f64> {
    let root = b * b - a * c;
    if root < 0.0 || a < 1e-18 {
        return None;
    }
    let near = (-b - root.sqrt()) / a;
    (near > NEAR).then_some(near)
}

/// Intersects a ray with a sphere around the z axis' point `z`.
fn ball(from: Vec3, ray: Vec3, z: f64, radius: f64) -> Option<Hit> {
    let from = sub(from, [0.0, 0.0, z]);
    let t = ahead(dot(ray, ray), dot(from, ray), dot(from, from) - radius * radius)?;
    Some((t, add(from, scale(ray, t))))
}

/// Intersects a ray with the side of a cylinder around the z axis.
fn tube(from: Vec3, ray: Vec3, radius: f64, half: f64) -> Option<Hit> {
    let flat = |a: Vec3| [a[0], a[1], 0.0];
    let (o, d) = (flat(from), flat(ray));
    let t = ahead(dot(d, d), dot(o, d), dot(o, o) - radius * radius)?;
    let at = add(from, scale(ray, t));
    (at[2].abs() <= half).then_some((t, flat(at)))
}

/// Intersects a ray with the upper or lower end of a cylinder.
fn lid(from: Vec3, ray: Vec3, radius: f64, z: f64) -> Option<Hit> {
    let t = (z - from[2]) / ray[2];
    let at = add(from, scale(ray, t));
    let there = t > NEAR && at[0] * at[0] + at[1] * at[1] <= radius * radius;
    there.then_some((t, [0.0, 0.0, z]))
}

impl Shape {
    /// Returns the radius of a bounding sphere; `None` for planes.
    fn reach(&self) -> Option<f64> {
        match *self {
            Shape::Plane { .. } => None,
            Shape::Ellipsoid(size) => Some(size.into_iter().fold(0.0, f64::max)),
            Shape::Capsule(radius, half) => Some(radius + half),
            Shape::Cylinder(radius, half) => Some(radius.hypot(half)),
            Shape::Box(size) => Some(dot(size, size).sqrt()),
        }
    }

    /// Returns the first hit of a ray, in the shape's own frame.
    fn hit(&self, from: Vec3, ray: Vec3) -> Option<Hit> {
        match *self {
            Shape::Plane { size, .. } => {
                let t = -from[2] / ray[2];
                let inside = |k: usize| size[k] <= 0.0 || (from[k] + t * ray[k]).abs() <= size[k];
                let there = ray[2] < 0.0 && t > NEAR && inside(0) && inside(1);
                there.then_some((t, [0.0, 0.0, 1.0]))
            }
            Shape::Ellipsoid(size) => {
                let by = |a: Vec3| [a[0] / size[0], a[1] / size[1], a[2] / size[2]];
                let (t, at) = ball(by(from), by(ray), 0.0, 1.0)?;
                Some((t, by(at)))
            }
            Shape::Capsule(radius, half) => {
                let ends = nearer(ball(from, ray, half, radius), ball(from, ray, -half, radius));
                nearer(tube(from, ray, radius, half), ends)
            }
            Shape::Cylinder(radius, half) => {
                let ends = nearer(lid(from, ray, radius, half), lid(from, ray, radius, -half));
                nearer(tube(from, ray, radius, half), ends)
            }
            Shape::Box(size) => {
                let (mut enter, mut leave, mut axis) = (f64::NEG_INFINITY, f64::INFINITY, 0);
                for k in 0..3 {
                    let (a, b) = ((-size[k] - from[k]) / ray[k], (size[k] - from[k]) / ray[k]);
                    if a.min(b) > enter {
                        (enter, axis) = (a.min(b), k);
                    }
                    leave = leave.min(a.max(b));
                }
                let mut normal = [0.0; 3];
                normal[axis] = -ray[axis].signum();
                (enter > NEAR && enter <= leave).then_some((enter, normal))
            }
        }
    }
}

/// Solid with values that are computed once per image.
struct Placed<'a> {
    solid: &'a Solid,
    reach: Option<f64>,
}

impl Placed<'_> {
    /// Returns the hit of a ray of length 1, in world coordinates. Most rays miss the bounding
    /// sphere.
    fn hit(&self, from: Vec3, ray: Vec3) -> Option<Hit> {
        let Solid { shape, at, axes, .. } = self.solid;
        let apart = sub(from, *at);
        if let Some(reach) = self.reach {
            let along = dot(apart, ray);
            let off = dot(apart, apart) - reach * reach;
            if off > 0.0 && (along > 0.0 || along * along < off) {
                return None;
            }
        }
        let (t, normal) = shape.hit(inward(axes, apart), inward(axes, ray))?;
        Some((t, outward(axes, normal)))
    }

    /// Returns the color at a point of the solid, `t` away from the camera. Squares that are too
    /// far away to be distinguished fade into one color.
    fn color(&self, point: Vec3, t: f64) -> Vec3 {
        let Solid { shape, at, axes, color } = self.solid;
        let Shape::Plane { square: Some(square), .. } = shape else { return *color };
        let local = inward(axes, sub(point, *at));
        let number = (local[0] / square).floor() + (local[1] / square).floor();
        let clear = ((20.0 - t / square) / 12.0).clamp(0.0, 1.0);
        let side = if number.rem_euclid(2.0) == 0.0 { -1.0 } else { 1.0 };
        scale(*color, 0.62 + 0.27 * side * clear)
    }
}

/// Returns the color along a ray: red, green, blue.
fn seen(scene: &[Placed<'_>], from: Vec3, ray: Vec3) -> Vec3 {
    let mut first: Option<(Hit, &Placed<'_>)> = None;
    for placed in scene {
        if let Some(hit) = placed.hit(from, ray)
            && first.as_ref().is_none_or(|(best, _)| hit.0 < best.0)
        {
            first = Some((hit, placed));
        }
    }
    let Some(((t, normal), placed)) = first else {
        // The sky: lighter towards the horizon.
        let height = ray[2].abs().sqrt();
        return add([0.82, 0.87, 0.92], scale([-0.42, -0.33, -0.22], height));
    };
    let (point, normal) = (add(from, scale(ray, t)), unit(normal));
    let mut light = dot(normal, LAMP).max(0.0);
    if placed.reach.is_none() {
        let above = add(point, scale(normal, 1e-4));
        let shaded =
            scene.iter().any(|other| other.reach.is_some() && other.hit(above, LAMP).is_some());
        light *= if shaded { SHADE } else { 1.0 };
    }
    let bright = 0.25 + 0.5 * light + 0.25 * dot(normal, ray).abs();
    scale(placed.color(point, t), bright)
}

/// Draws an image of `side` rows of `side` pixels, each the mean of the colors at its corners.
pub(super) fn draw(solids: &[Solid], camera: &Camera, side: usize) -> Frame {
    let scene: Vec<Placed<'_>> =
        solids.iter().map(|solid| Placed { solid, reach: solid.shape.reach() }).collect();
    let slope = (0.5 * camera.fovy.to_radians()).tan();
    let place = |k: usize| slope * (2.0 * k as f64 / side as f64 - 1.0);
    let corners = |row: usize| -> Vec<Vec3> {
        let ray = |column| outward(&camera.axes, unit([place(column), -place(row), -1.0]));
        (0..=side).map(|column| seen(&scene, camera.at, ray(column))).collect()
    };
    let mut rgb = Vec::with_capacity(side * side * 3);
    let mut above = corners(0);
    for row in 1..=side {
        let below = corners(row);
        for (above, below) in above.windows(2).zip(below.windows(2)) {
            let sum = add(add(above[0], above[1]), add(below[0], below[1]));
            rgb.extend(sum.map(|x| (x * 0.25 * 255.0).clamp(0.0, 255.0) as u8));
        }
        above = below;
    }
    Frame { height: side, width: side, fps: Frame::FPS, rgb }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPRIGHT: [f64; 9] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];

    #[test]
    fn rays_meet_shapes_where_they_are() {
        let down = |shape: Shape, x: f64| shape.hit([x, 0.0, 5.0], [0.0, 0.0, -1.0]);
        let across = |shape: Shape, z: f64| shape.hit([-5.0, 0.0, z], [1.0, 0.0, 0.0]);
        let far = |hit: Option<Hit>| hit.map(|(t, _)| (t * 1e6).round() / 1e6);
        let sizes = [1.0, 2.0, 3.0];
        assert_eq!(far(down(Shape::Box(sizes), 0.5)), Some(2.0));
        assert_eq!(far(down(Shape::Box(sizes), 1.5)), None);
        assert_eq!(far(across(Shape::Box(sizes), 2.9)), Some(4.0));
        assert_eq!(far(down(Shape::Ellipsoid(sizes), 0.0)), Some(2.0));
        assert_eq!(far(across(Shape::Ellipsoid(sizes), 0.0)), Some(4.0));
        assert_eq!(far(across(Shape::Ellipsoid(sizes), 3.1)), None);
        // A capsule is longer than a cylinder by its round ends.
        assert_eq!(far(down(Shape::Capsule(1.0, 2.0), 0.0)), Some(2.0));
        assert_eq!(far(down(Shape::Cylinder(1.0, 2.0), 0.9)), Some(3.0));
        assert_eq!(far(across(Shape::Cylinder(1.0, 2.0), 1.9)), Some(4.0));
        assert_eq!(far(across(Shape::Cylinder(1.0, 2.0), 2.1)), None);
        let plane = Shape::Plane { size: [1.0, 0.0], square: None };
        assert_eq!(far(down(plane, 0.5)), Some(5.0));
        assert_eq!(far(down(plane, 1.5)), None);
        // The floor is invisible from below.
        assert_eq!(far(plane.hit([0.0, 0.0, -5.0], [0.0, 0.0, 1.0])), None);
        // Normals point towards the origin of the ray.
        for shape in [Shape::Box(sizes), Shape::Ellipsoid(sizes), Shape::Cylinder(1.0, 2.0)] {
            assert!(down(shape, 0.0).unwrap().1[2] > 0.0, "{shape:?}");
            assert!(across(shape, 0.0).unwrap().1[0] < 0.0, "{shape:?}");
        }
    }

    #[test]
    fn a_ball_is_in_the_middle_and_its_shadow_on_the_floor() {
        let ball = Solid {
            shape: Shape::Ellipsoid([0.5; 3]),
            at: [0.0, 0.0, 1.0],
            axes: UPRIGHT,
            color: [1.0, 0.0, 0.0],
        };
        let shape = Shape::Plane { size: [0.0; 2], square: None };
        let floor = Solid { shape, at: [0.0; 3], color: [0.0, 1.0, 0.0], ..ball };
        // From the south, a little from above.
        let camera = Camera::free([0.0, 0.0, 1.0], 4.0, 90.0, -10.0);
        let frame = draw(&[floor, ball], &camera, 64);
        let pixel = |x: usize, y: usize| -> [u8; 3] {
            frame.rgb[3 * (64 * y + x)..][..3].try_into().unwrap()
        };
        assert_eq!((frame.height, frame.width, frame.rgb.len()), (64, 64, 64 * 64 * 3));
        assert!(matches!(pixel(32, 32), [100..=255, 0, 0]), "{:?}", pixel(32, 32));
        assert!(matches!(pixel(2, 62), [0, 100..=255, 0]), "{:?}", pixel(2, 62));
        assert!(matches!(pixel(2, 2), [_, _, 100..=255]), "the sky: {:?}", pixel(2, 2));
        // The floor under the ball, some 12 degrees below the middle.
        let greens: Vec<u8> = (0..64).map(|x| pixel(x, 49)[1]).collect();
        let (least, most) = (greens.iter().min().unwrap(), greens.iter().max().unwrap());
        assert!(u32::from(*least) * 10 < u32::from(*most) * 9, "no shadow: {greens:?}");
    }
}
