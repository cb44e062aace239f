#[derive(podracer::Tree)]
struct Dense {
    w: f32,
}

fn main() {}
