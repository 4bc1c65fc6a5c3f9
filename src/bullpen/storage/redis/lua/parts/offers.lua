-- A worker that waits makes an offer: to claim one task as soon as there is one. An offer is in msgpack: {channel, worker,
-- lease, claim id, tags}.

-- Returns false if there was no such offer any more.
local function withdraw(tags, offer)
    local count = 0
    for _, tag in ipairs(tags) do count = count + redis.call('ZREM', tag .. ':offers', offer) end
    return count > 0
end

-- Claim the next task of a queue for one that waits, and send it there; of those that have waited the longest one who
-- listens, for others are gone. Returns its id, or nothing. It is told {number of the tag, six words as `show_one` has them}.
local function hand_over(tag, moment)
    for _, offer in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':offers', moment, 'inf', 'LIMIT', 0, 10)) do
        local channel, worker, lease, claim_id, tags = unpack(cmsgpack.unpack(offer))
        if redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
            withdraw(tags, offer)
        else
            local claimed = claim(tags, 1, moment, worker, lease, claim_id)
            if #claimed == 0 then return nil end
            withdraw(tags, offer)
            for number, other in ipairs(tags) do
                if other == claimed[1] then claimed[1] = tostring(number) end
            end
            claimed[7] = exact(moment + lease)
            redis.call('PUBLISH', channel, 'c' .. claim_id .. as_news(claimed, 7))
            return claimed[2]
        end
    end
    return nil
end
