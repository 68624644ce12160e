// The next hours: members weighed hour by hour on what they forecast of the last hours, and combined.

#include "series.hpp"

namespace tidegrid::realtime {
namespace {

struct Weighed {
    double value, weight;
};

// Weighted median halfway along the steps of the weighted distribution, so that equal weights give the plain median.
double weighted_median(std::vector<Weighed>& x) {
    std::ranges::stable_sort(x, {}, &Weighed::value);
    double total = 0.0;
    for (const Weighed& one : x) total += one.weight;
    double below = 0.0, middle_before = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double middle = below + 0.5 * x[i].weight;
        if (middle >= 0.5 * total - 1e-15) {
            if (i == 0 || middle <= middle_before) return x[i].value;
            const double share = (0.5 * total - middle_before) / (middle - middle_before);
            return x[i - 1].value + (x[i].value - x[i - 1].value) * std::clamp(share, 0.0, 1.0);
        }
        below += x[i].weight;
        middle_before = middle;
    }
    return x.empty() ? std::numeric_limits<double>::quiet_NaN() : x.back().value;
}

// Mean absolute error of each member at each lead, older hours counting less.
struct FadedLosses {
    double fade;
    std::vector<double> sum, mass;

    FadedLosses(double half_life, std::size_t size) : fade(std::exp2(-1.0 / half_life)), sum(size), mass(size) {}

    void pass_hour() {
        for (double& one : sum) one *= fade;
        for (double& one : mass) one *= fade;
    }

    void add(std::size_t at, double error) {
        sum[at] += error;
        mass[at] += 1.0;
    }

    // A member that was always right must not weigh infinitely more than one that nearly was.
    double log_mean(std::size_t at) const { return std::log(std::max(sum[at] / mass[at], 1e-9)); }
};

}  // namespace

extern "C" {

// Settings of `tidegrid.estimators.realtime.nexthours`, which says what each means.
struct JudgeRules {
    double slow_half_life, fast_half_life, fast_share, sharpness, all_leads_share;
    double surprise_from, surprise_to;
};

// Combine members at origins an hour apart, each time with the weights that the hours before that origin give.
//
// x, known   the series and which of its hours were measured
// first      the first origin: hours before it are its past
// paths      forecasts of shape (members, origins, leads), NaN where a member has none
// prior      weight of each member at equal loss, shape (members,)
// done       how many of the first origins are combined already; the last never is
// out        receives the combined forecasts, shape (origins, leads); holds those that are done
// followed   receives how far the last origin's weights follow the last hours alone, 0 to 1, shape (1,)
[[gnu::visibility("default")]] bool tg_next_hours(Array<const double> x_, Array<const bool> known_,
                                                  std::int64_t first, Array<const double> paths_,
                                                  Array<const double> prior_, std::int64_t leads_, std::int64_t done,
                                                  const JudgeRules* rules, Array<double> out_,
                                                  Array<double> followed) {
    const Series x = x_, paths = paths_, prior = prior_;
    const std::span<const bool> known = known_;
    const std::span<double> out = out_;
    const std::size_t members = prior.size();
    if (followed.size != 1 || leads_ < 1 || first < 1 || members == 0 || known.size() != x.size()) return false;
    const auto leads = static_cast<std::size_t>(leads_), start = static_cast<std::size_t>(first);
    const std::size_t origins = out.size() / leads;
    if (out.size() != origins * leads || paths.size() != members * out.size()) return false;
    if (done < 0 || static_cast<std::size_t>(done) >= origins) return false;
    if (origins == 0 || start + origins - 1 > x.size()) return false;
    const auto path = [&](std::size_t m, std::size_t o, std::size_t k) { return paths[(m * origins + o) * leads + k]; };
    FadedLosses slow(rules->slow_half_life, members * leads), fast(rules->fast_half_life, members * leads);
    std::vector<double> loss(members * leads), overall(members);
    std::vector<Weighed> votes;
    FadedLosses usual_error(rules->slow_half_life, 1);
    FadedLosses surprises(rules->fast_half_life, 1);
    for (std::size_t o = 0; o < origins; ++o) {
        slow.pass_hour();
        fast.pass_hour();
        // the hour that has just ended was forecast from the origins before, at one lead each
        const std::size_t hour = start + o - 1;
        for (std::size_t k = 0; k < leads && k + 1 <= o; ++k) {
            if (!known[hour]) break;
            for (std::size_t m = 0; m < members; ++m) {
                const double error = std::abs(x[hour] - path(m, o - k - 1, k));
                if (std::isnan(error)) continue;
                slow.add(m * leads + k, error);
                fast.add(m * leads + k, error);
            }
        }
        // after errors far beyond the usual the last hours alone say which member is right
        double surprise = 0.0;
        usual_error.pass_hour();
        surprises.pass_hour();
        if (o > 0 && known[hour] && !std::isnan(out[(o - 1) * leads])) {
            const double error = std::abs(x[hour] - out[(o - 1) * leads]);
            const bool judged = usual_error.mass[0] > 0.0;
            const double usual = judged ? std::exp(usual_error.log_mean(0)) : error;
            if (judged) surprises.add(0, error / usual);
            // what is usual must not be moved at once by what is unusual
            usual_error.add(0, std::min(error, rules->surprise_to * usual));
        }
        if (o < static_cast<std::size_t>(done)) continue;
        if (usual_error.mass[0] >= 24.0) {
            const double times = std::exp(surprises.log_mean(0));
            const double share = (times - rules->surprise_from) / (rules->surprise_to - rules->surprise_from);
            surprise = std::clamp(share, 0.0, 1.0);
        }
        followed.data[0] = surprise;
        const double fast_share = rules->fast_share + (1.0 - rules->fast_share) * surprise;
        // the first leads, which alone have seen the last hours, then speak for the others
        const double pooled = rules->all_leads_share + (1.0 - rules->all_leads_share) * surprise;
        const double most = *std::ranges::max_element(slow.mass);
        for (std::size_t m = 0; m < members; ++m) {
            overall[m] = 0.0;
            std::size_t count = 0;
            for (std::size_t k = 0; k < leads; ++k) {
                const std::size_t at = m * leads + k;
                loss[at] = std::numeric_limits<double>::quiet_NaN();
                // a member that missed most of the hours that others have is not judged
                if (!(slow.mass[at] > 0.0) || slow.mass[at] < 0.5 * most) continue;
                loss[at] = (1.0 - fast_share) * slow.log_mean(at) + fast_share * fast.log_mean(at);
                overall[m] += loss[at];
                ++count;
            }
            overall[m] /= static_cast<double>(count);
        }
        for (std::size_t k = 0; k < leads; ++k) {
            double least = std::numeric_limits<double>::infinity();
            for (std::size_t m = 0; m < members; ++m) {
                double& one = loss[m * leads + k];
                one += pooled * (overall[m] - one);
                if (one < least) least = one;
            }
            votes.clear();
            for (std::size_t m = 0; m < members; ++m) {
                const double value = path(m, o, k), one = loss[m * leads + k];
                if (std::isnan(value) || (std::isfinite(least) && std::isnan(one))) continue;
                const double apart = std::isfinite(least) ? one - least : 0.0;
                const double weight = prior[m] * std::exp(-rules->sharpness * apart);
                if (weight > 0.0) votes.push_back({value, weight});
            }
            out[o * leads + k] = weighted_median(votes);
        }
    }
    return true;
}

}  // extern "C"

}  // namespace tidegrid::realtime
