//! Human-normalized scores of Atari games.

/// Game, score of a random policy, score of a human tester: 57 games, from the tables of Wang et al.
/// 2016 ("Dueling Network Architectures for Deep Reinforcement Learning"), which DQN Zoo repeats.
const ATARI: [(&str, f64, f64); 57] = [
    ("Alien", 227.8, 7127.7),
    ("Amidar", 5.8, 1719.5),
    ("Assault", 222.4, 742.0),
    ("Asterix", 210.0, 8503.3),
    ("Asteroids", 719.1, 47_388.7),
    ("Atlantis", 12_850.0, 29_028.1),
    ("BankHeist", 14.2, 753.1),
    ("BattleZone", 2360.0, 37_187.5),
    ("BeamRider", 363.9, 16_926.5),
    ("Berzerk", 123.7, 2630.4),
    ("Bowling", 23.1, 160.7),
    ("Boxing", 0.1, 12.1),
    ("Breakout", 1.7, 30.5),
    ("Centipede", 2090.9, 12_017.0),
    ("ChopperCommand", 811.0, 7387.8),
    ("CrazyClimber", 10_780.5, 35_829.4),
    ("Defender", 2874.5, 18_688.9),
    ("DemonAttack", 152.1, 1971.0),
    ("DoubleDunk", -18.6, -16.4),
    ("Enduro", 0.0, 860.5),
    ("FishingDerby", -91.7, -38.7),
    ("Freeway", 0.0, 29.6),
    ("Frostbite", 65.2, 4334.7),
    ("Gopher", 257.6, 2412.5),
    ("Gravitar", 173.0, 3351.4),
    ("Hero", 1027.0, 30_826.4),
    ("IceHockey", -11.2, 0.9),
    ("Jamesbond", 29.0, 302.8),
    ("Kangaroo", 52.0, 3035.0),
    ("Krull", 1598.0, 2665.5),
    ("KungFuMaster", 258.5, 22_736.3),
    ("MontezumaRevenge", 0.0, 4753.3),
    ("MsPacman", 307.3, 6951.6),
    ("NameThisGame", 2292.3, 8049.0),
    ("Phoenix", 761.4, 7242.6),
    ("Pitfall", -229.4, 6463.7),
    ("Pong", -20.7, 14.6),
    ("PrivateEye", 24.9, 69_571.3),
    ("Qbert", 163.9, 13_455.0),
    ("Riverraid", 1338.5, 17_118.0),
    ("RoadRunner", 11.5, 7845.0),
    ("Robotank", 2.2, 11.9),
    ("Seaquest", 68.4, 42_054.7),
    ("Skiing", -17_098.1, -4336.9),
    ("Solaris", 1236.3, 12_326.7),
    ("SpaceInvaders", 148.0, 1668.7),
    ("StarGunner", 664.0, 10_250.0),
    ("Surround", -10.0, 6.5),
    ("Tennis", -23.8, -8.3),
    ("TimePilot", 3568.0, 5229.2),
    ("Tutankham", 11.4, 167.6),
    ("UpNDown", 533.4, 11_693.2),
    ("Venture", 0.0, 1187.5),
    ("VideoPinball", 16_256.9, 17_667.9),
    ("WizardOfWor", 563.5, 4756.5),
    ("YarsRevenge", 3092.9, 54_576.9),
    ("Zaxxon", 32.5, 9173.3),
];

/// Returns the human-normalized score `(score - random) / (human - random)` of an Atari game, named
/// as in EnvPool (`Pong-v5`) or in Gymnasium (`gymnasium:ALE/Pong-v5`); `None` for environments
/// without published scores.
pub fn human_normalized_score(env_id: &str, score: f64) -> Option<f64> {
    let name = env_id.strip_prefix("gymnasium:").unwrap_or(env_id);
    let name = name.strip_prefix("ALE/").unwrap_or(name).strip_suffix("-v5")?;
    let (_, random, human) = ATARI.iter().find(|(game, ..)| *game == name)?;
    Some((score - random) / (human - random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_human_has_the_score_one() {
        for (game, random, human) in ATARI {
            let id = format!("{game}-v5");
            assert!(crate::envs::list_envs().contains(&id.as_str()), "{id}");
            assert_eq!(human_normalized_score(&id, random), Some(0.0));
            assert_eq!(human_normalized_score(&id, human), Some(1.0));
            assert!(random < human, "{id}");
        }
        let pong = human_normalized_score("gymnasium:ALE/Pong-v5", 20.0).unwrap();
        assert!((pong - 40.7 / 35.3).abs() < 1e-12);
        for id in ["CartPole-v1", "Pong-v4", "Pong"] {
            assert_eq!(human_normalized_score(id, 0.0), None);
        }
    }
}
