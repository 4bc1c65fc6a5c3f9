-- Words as they come with a notification, if they are few: those who listen are cut off if they have to be told too much.
local function as_news(words, count)
    local written, length = {}, 0
    for i = 1, count do
        local word = words[i] or nil
        written[i] = word and #word .. ':' .. word or '-1:'
        length = length + #written[i]
    end
    return length <= MOST_NEWS and '\0' .. table.concat(written) or ''
end
