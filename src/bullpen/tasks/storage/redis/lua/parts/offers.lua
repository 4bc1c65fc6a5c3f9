-- Offers of waiting workers to claim one task as soon as one may start. An offer is {channel, worker, lease, claim id,
-- tags} in msgpack.

-- Returns false if the offer did not exist any more.
local function withdraw(tags, offer)
    local count = 0
    for _, tag in ipairs(tags) do count = count + redis.call('ZREM', tag .. ':offers', offer) end
    return count > 0
end

-- Claim the next task of a queue for the first offer whose worker is subscribed, and publish the task to that worker:
-- the number of the tag, and a row. Returns the id, or nil.
local function claim_for_offer(tag, now)
    for _, offer in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':offers', now, 'inf', 'LIMIT', 0, 10)) do
        local channel, worker, lease, claim_id, tags = unpack(cmsgpack.unpack(offer))
        if redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
            withdraw(tags, offer)
        else
            local claimed = claim(tags, 1, now, worker, lease, claim_id)
            if #claimed == 0 then return nil end
            withdraw(tags, offer)
            for number, other in ipairs(tags) do
                if other == claimed[1] then claimed[1] = tostring(number) end
            end
            claimed[7] = exact(now + lease)
            redis.call('PUBLISH', channel, 'c' .. claim_id .. as_attachment(claimed, 7))
            return claimed[2]
        end
    end
    return nil
end
