-- For wrk: every request puts a body of its own; the numbers that were answered go to a file.
local threads = 0

function setup(thread)
   thread:set("number", threads)
   threads = threads + 1
end

function init(args)
   answered = io.open(args[1] .. "/answered-" .. number, "w")
   answered:setvbuf("line")
   asked = 0
end

function request()
   asked = asked + 1
   return wrk.format("POST", "/", nil, number .. "-" .. asked)
end

function response(status, headers, body)
   if status == 200 then
      answered:write(body)
   end
end
